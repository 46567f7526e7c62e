"""WHAT is computed: checkpoints, architectures, packed weights and the decoder, written once against an op set."""
