"""One module per command, each exporting a click command named `command`; loaded when called."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from click import Context, Parameter

# Every command has these itself: click keeps the help option of the first context that a command is used in, which
# without the group around it would be --help alone.
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def not_blank(context: Context, parameter: Parameter, value: Any, *, what: str = "a file or a folder") -> Any:
    """Callback of an option or an argument that names `what`. ValueError where it is empty, as of an unset variable.

    Else what should be written is lost, or something else is read or written than was meant.
    """
    named = value if isinstance(value, tuple) else (value,)
    source = context.get_parameter_source(parameter.name or "")
    said = source is not None and source.name == "COMMANDLINE"
    if said and any(name is not None and not str(name).strip() for name in named):
        option = parameter.param_type_name == "option"
        given = " / ".join(parameter.opts) if option else parameter.human_readable_name.strip("[].")
        leave = f", or leave {'the option' if option else 'it'} out" * (not parameter.required)
        raise ValueError(f"{given} is empty: it names {what}. Name one{leave}.")
    return value


# The same of options that name something else.
not_blank_stack = partial(not_blank, what="a software release, such as nemo-26.06")
not_blank_term = partial(not_blank, what="a term, such as step")
not_blank_version = partial(not_blank, what="a release of the target, such as 0.17")
not_blank_profile = partial(not_blank, what="what `advisor calibrate` measured")


def options_given(context: Context) -> dict[str, str]:
    """The options that the command line has: name of the parameter -> the option as it is written there."""
    found = {}
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            found[each.name or ""] = max(each.opts, key=len)
    return found
