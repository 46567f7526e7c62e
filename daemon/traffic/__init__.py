"""Traffic: requests to a server that speaks OpenAI's API, and how long each of them took."""
