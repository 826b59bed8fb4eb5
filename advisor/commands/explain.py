"""advisor explain: the best plan for a model on a cluster, and why."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import Any

import click

from advisor.commands import HELP, not_blank, not_blank_stack
from advisor.options import PinsKnobs
from advisor.prices import price_option, priced
from advisor.profiles import profile_option
from advisor.whole_numbers import COUNT, SEQUENCES, TOKENS, Number, WholeNumber
from advisor.workload_options import given_workload, task_option, tokens_option, workload_options

# Days of --days stay below this.
MOST_DAYS = 1_000_000


@click.command(name="explain", context_settings=HELP, cls=PinsKnobs)
@click.option("--model", required=True, help="Model: a name, an alias such as 70b, a TOML or a config.json.")
@click.option("--gpus", type=COUNT, required=True, metavar="N", help="GPUs in all.")
@click.option("--gpu", metavar="NAME", help="GPU type, such as h100, b200, or a TOML of yours.")
@click.option("--cluster", metavar="NAME", help="A cluster instead of --gpu, such as dgx-h100, or a TOML.")
@click.option(
    "--seq-len",
    type=TOKENS,
    metavar="TOKENS",
    help="Tokens of one sequence, such as 128K [the model's usual].",
)
@click.option("--global-batch", type=SEQUENCES, metavar="N", help="Sequences a step [scaled with the GPUs].")
@click.option("--precision", default="auto", show_default=True, help="Recipes to search, at commas.")
@task_option("pretrain", "pretrain, sft or lora.")
@click.option(
    "--objective",
    default="throughput",
    show_default=True,
    help="throughput, cost (fewest GPU-hours) or memory (least; of plans within 0.1 % of the same the fastest).",
)
@click.option(
    "--slowdown",
    type=Number(1.5),
    metavar="X",
    help="With --objective memory: how many times as slow as the fastest plan it may be [1.5].",
)
@click.option(
    "--pin",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only plans with this value of a knob or setting, under any name, ours or a framework's; repeatable.",
)
@click.option(
    "--why-not",
    multiple=True,
    metavar="NAME=VALUE",
    help="What that would cost, or what forbids it; repeatable.",
)
@tokens_option("Tokens to train on, such as 15T, for GPU-hours, $ and kWh.")
@price_option
@click.option(
    "--days", type=Number(60), metavar="D", help="Days that --tokens may take: how many GPUs that needs."
)
@click.option(
    "--top", type=WholeNumber(5), default=5, show_default=True, metavar="K", help="Plans to tell about."
)
@click.option(
    "--stack",
    metavar="NAME",
    callback=not_blank_stack,
    help="Software release, such as nemo-26.06 [the newest known].",
)
@workload_options
@profile_option
@click.option("--save", metavar="FILE", callback=not_blank, help="Write the plan as a plan file.")
@click.option(
    "--html",
    metavar="FILE",
    callback=not_blank,
    help="Write a page to open in a browser, as `advisor report` does.",
)
@click.option("--formulas", is_flag=True, help="Every formula, with the numbers of the plan put in.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.pass_context
def command(context: click.Context, **options: Any) -> None:
    """The best plan for a model on a cluster, and why.

    Every legal plan of a declared space is evaluated, the best pipelines are simulated, and the best of those is
    the answer. First the plan and its numbers, then where time and memory go, what binds, what the runners-up lose
    to, and the path that the tuning guides take to it. Exit code 1 when nothing fits.

    \b
    advisor explain --model 70b --gpus 64 --gpu b200
    advisor explain --model 70b --gpus 64 --gpu b200 --why-not tp=8
    advisor explain --model 70b --gpus 64 --gpu b200 --tokens 15T --days 60
    """
    from advisor.case import files_read
    from advisor.progress import Progress
    from advisor.request import make_request
    from costmodel.output_file import check_output

    if options["gpu"] is None and options["cluster"] is None:
        raise ValueError(
            "no machine: give --gpu or --cluster. Try --gpu h100; `advisor hardware` lists them."
        )
    days, tokens = options["days"], options["tokens"]
    if days is not None and not 0 < days < MOST_DAYS:
        raise ValueError(f"--days {days:g} is not above 0 and below {MOST_DAYS:,} days. Try --days 60.")
    if days is not None and tokens is None:
        raise ValueError(
            "--days asks how many GPUs train --tokens in time, and no tokens are named. Add --tokens 15T."
        )
    if options["price"] is not None and tokens is None:
        raise ValueError("--price is for the $ of --tokens, and no tokens are named. Add --tokens 15T.")
    for given, kind in (("save", "plan file"), ("html", "page")):
        if options[given] is not None:
            other = options["save"] if given == "html" else None
            check_output(f"--{given}", options[given], kind, files_read(None, options), other)
    request = make_request(
        options["model"],
        options["gpus"],
        options["gpu"],
        options["cluster"],
        seq_len=options["seq_len"],
        global_batch=options["global_batch"],
        task=options["task"],
        precision=options["precision"],
        objective=options["objective"],
        slowdown=options["slowdown"],
        pins=options["pin"],
        top=options["top"],
        tokens=options["tokens"],
        stack=options["stack"],
        load=given_workload(options),
    )
    request = replace(request, cluster=priced(request.cluster, options["price"]))
    with Progress(wanted=not options["as_json"]) as progress:
        explanation, look = _explained(request, options, progress)
        saved = _save(explanation, options) if explanation.best else None
        page = _report(explanation, look, saved, options, progress)
    if options["as_json"]:
        record = explanation.to_dict()
        if options["formulas"] and explanation.best:
            from advisor.predict_text import formula_records

            record["formulas"] = formula_records(explanation.best.prediction)
        click.echo(json.dumps(record, indent=2))
    else:
        from advisor.explain_text import explanation_lines

        lines = explanation_lines(explanation, options["formulas"])
        if saved:
            lines += ["", f"Saved as {saved}. `advisor predict {shlex.quote(saved)}` shows it again."]
        elif options["save"]:
            lines += ["", f"{options['save']} is not written: no plan fits."]
        if page:
            lines += ["", f"Wrote {page}. Open it in a browser."]
        click.echo("\n".join(lines))
    context.exit(0 if explanation.best else 1)


def _explained(request: Any, options: dict[str, Any], progress: Any) -> tuple[Any, Any]:
    """The explanation, and what a page wants to see of the search (None without a page)."""
    from advisor.explain import explain

    if options["html"] is None:
        return explain(request, options["why_not"], progress, days=options["days"]), None
    from advisor.report.cloud import Cloud

    cloud = Cloud()
    return explain(request, options["why_not"], progress, cloud, options["days"]), cloud


def _report(explanation: Any, cloud: Any, saved: str | None, options: dict[str, Any], progress: Any) -> Any:
    """Write the page where it was asked for; returns its path."""
    if options["html"] is None:
        return None
    from advisor.report.page import write_report
    from advisor.report.subject import subject_of_explanation

    names = {
        "model": options["model"],
        **{name: options[name] for name in ("gpu", "cluster") if options[name]},
    }
    subject = subject_of_explanation(explanation, cloud, names, saved, sys.argv[1:], progress)
    return write_report(options["html"], subject)


def _save(explanation: Any, options: dict[str, Any]) -> str | None:
    """Write the plan where it was asked for, and as the last plan; returns the path asked for."""
    from costmodel.plan_file import PlanFile, last_plan_path, provenance, save_plan_file

    prediction = explanation.best.prediction
    cluster = options["cluster"] or ""
    if not cluster:
        gpu = options["gpu"]
        cluster = gpu if gpu.endswith(".toml") else prediction.cluster.name
    plan_file = PlanFile(
        model=options["model"] if _is_path(options["model"]) else prediction.model.name,
        workload=prediction.workload,
        cluster=cluster,
        gpus=prediction.plan.world,
        plan=prediction.plan,
        stack=options["stack"] or "",
        prediction=provenance(prediction, "advisor " + shlex.join(sys.argv[1:])),
        price=options["price"],
    )
    try:
        last_plan_path().parent.mkdir(parents=True, exist_ok=True)
        save_plan_file(last_plan_path(), plan_file)
    except OSError:
        pass  # without a writable cache there is no last plan to run, and nothing else is lost
    if options["save"] is None:
        return None
    return str(save_plan_file(options["save"], plan_file))


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".toml", ".json"))
