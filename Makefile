# make check: everything that must hold before a change is proposed. make fix: what can be fixed by itself.
# make explore: the property-based tests on new random examples, a thousand of most (some ten minutes).
python ?= .venv/bin/python
tools := $(dir $(python))

.PHONY: check fix explore format lint types imports tests docs fix-docs

check: format lint types imports docs tests

format:
	$(tools)ruff format --check --quiet .
lint:
	$(tools)ruff check --quiet .
types:
	$(tools)mypy
imports:
	$(tools)lint-imports
tests:
	$(python) -m pytest
explore:
	ADVISOR_EXAMPLES=explore $(python) -m pytest -n 2 $(shell grep -rl '@given' tests)
# Pages are made from this tree, also where the environment holds another one (a second worktree).
docs fix-docs: export PYTHONPATH := $(CURDIR)
docs:
	$(python) tools/build_docs.py --check
	$(python) tools/knob_docs.py --check
	$(python) tools/method_docs.py --check
	$(python) tools/guide_docs.py --check

fix: fix-docs
	$(tools)ruff format .
	$(tools)ruff check --fix .
fix-docs:
	$(python) tools/build_docs.py
	$(python) tools/knob_docs.py
	$(python) tools/method_docs.py
	$(python) tools/guide_docs.py
	@echo 'docs/tutorial.md and docs/extending.md: python tools/page_blocks.py docs/tutorial.md docs/extending.md'
