"""One module per command, each exporting a click command named `command`; loaded when called."""
