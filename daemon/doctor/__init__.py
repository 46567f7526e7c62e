"""What `isotherm doctor` looks at: the machine, settings and files of this user, and what is wrong."""
