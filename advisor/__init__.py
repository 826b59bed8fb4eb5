"""The conversation: request, search, explain, export, render and the command line."""
