"""One module per command, each exporting a click command named `command`; loaded when called."""

# Every command has these itself: click keeps the help option of the first context that a command is used in, which
# without the group around it would be --help alone.
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
