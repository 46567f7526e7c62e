"""The OpenAI dialect: request fields, endpoints, and the shapes of answers."""
