"""One module per command, each exporting a click command named `command`; loaded when called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from click import Context, Parameter

# Every command has these itself: click keeps the help option of the first context that a command is used in, which
# without the group around it would be --help alone.
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def not_blank(context: Context, parameter: Parameter, value: Any) -> Any:
    """Callback of an option that names a file or a folder. ValueError where the name is empty, as of an unset variable.

    Else what should be written is lost, or something else is read or written than was meant.
    """
    named = value if isinstance(value, tuple) else (value,)
    source = context.get_parameter_source(parameter.name or "")
    said = source is not None and source.name == "COMMANDLINE"
    if said and any(name is not None and not str(name).strip() for name in named):
        option = " / ".join(parameter.opts)
        way = "Name one." if parameter.required else "Name one, or leave the option out."
        raise ValueError(f"{option} is empty: it names a file or a folder. {way}")
    return value
