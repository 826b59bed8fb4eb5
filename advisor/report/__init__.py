"""One page about one plan: everything `explain` tells, to look at, to drill into and to share.

`payload` gathers the numbers (those of `explain --json` and more), `page` writes the file; a browser draws what
the payload holds and computes nothing of its own but what-if, from the same expressions printed as JavaScript.
"""
