"""Python's syntax trees as JavaScript, for the plain functions of `costmodel.javascript.functions`."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from costmodel.javascript import RESERVED

# Python's meaning of what the translation calls.
RUNTIME = r"""
const range = (a, b, step = 1) => { if (b === undefined) { b = a; a = 0; }
  const r = []; for (let i = a; step > 0 ? i < b : i > b; i += step) r.push(i); return r; };
const len = (x) => x instanceof Set ? x.size : x.length;
const sum = (x) => { let s = 0; for (const i of x) s += i; return s; };
const before = (a, b) => { if (!Array.isArray(a)) return a < b;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] < b[i]; return false; };
const best = (x, key, wins) => { let found, value;
  for (const i of x) { const k = key(i); if (value === undefined || wins(k, value)) { found = i; value = k; } }
  return found; };
const same = (x) => x;
const least = (x, key = same) => best(x, key, before);
const most = (x, key = same) => best(x, key, (a, b) => before(b, a));
const zip = (...lists) => range(Math.min(...lists.map(len))).map((i) => lists.map((l) => l[i]));
const enumerate = (x) => [...x].map((v, i) => [i, v]);
const accumulate = (x) => { let s = 0; return x.map((i) => (s += i)); };
const sorted = (x) => [...x].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
const truth = (x) => (Array.isArray(x) ? x.length > 0 : x instanceof Set ? x.size > 0 : !!x);
const either = (a, b) => (truth(a) ? a : b());
const both = (a, b) => (truth(a) ? b() : a);
const has = (x, k) => x instanceof Set ? x.has(k) : Array.isArray(x) ? x.includes(k)
  : typeof x === "string" ? x.includes(k) : Object.hasOwn(x, k);
const get = (x, k, other = null) => (Object.hasOwn(x, k) ? x[k] : other);
const count = (x, k) => (typeof x === "string" ? x.split(k).length - 1 : x.filter((i) => i === k).length);
const isclose = (a, b, tolerance) => a === b || Math.abs(a - b) <= tolerance * Math.max(Math.abs(a), Math.abs(b));
const bit_length = (x) => (x ? Math.floor(Math.log2(x)) + 1 : 0);
const round = (x) => { const f = Math.floor(x), d = x - f; return d < 0.5 ? f : d > 0.5 ? f + 1 : f % 2 ? f + 1 : f; };
const mod = (a, b) => a - b * Math.floor(a / b);
const six = (x) => { const [m, p] = Math.abs(x).toExponential(60).split("e"), d = m.replace(".", "");
  const even = /^50*$/.test(d.slice(6)) && Number(d[5]) % 2 === 0;
  return even ? `${x < 0 ? "-" : ""}${d[0]}.${d.slice(1, 6)}e${p}` : x.toExponential(5); };
const general = (x) => { if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x < 0 ? "-inf" : "inf";
  const [m, p] = six(x).split("e");
  if (p >= -4 && p < 6) return String(Number(`${m}e${p}`));
  return Number(m) + "e" + (p < 0 ? "-" : "+") + String(Math.abs(p)).padStart(2, "0"); };
const plain = (x) => typeof x !== "number" || Number.isInteger(x) || Math.abs(x) >= 1e-4 || Number.isNaN(x) ? word(x)
  : x.toExponential().replace(/e-(\d)$/, "e-0$1");
const word = (x) => typeof x === "boolean" ? (x ? "True" : "False") : String(x);
const text = (x) => typeof x === "boolean" ? (x ? "True" : "False")
  : typeof x === "number" && !Number.isInteger(x) ? general(x) : String(x);
"""
# Names that a translated function may not take for its own.
TAKEN = RESERVED | set(re.findall(r"^const (\w+)", RUNTIME, re.MULTILINE))
BUILTINS = {
    "range": "range",
    "len": "len",
    "sum": "sum",
    "zip": "zip",
    "enumerate": "enumerate",
    "sorted": "sorted",
    "abs": "Math.abs",
    "int": "Math.trunc",
    "float": "Number",
    "bool": "truth",
    "str": "plain",
    "round": "round",
}
DOTTED = {
    "math.isclose": "isclose",
    "math.log2": "Math.log2",
    "itertools.accumulate": "accumulate",
    "np.maximum": "Math.max",
    "np.minimum": "Math.min",
}
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "===",
    ast.NotEq: "!==",
    ast.Is: "===",
    ast.IsNot: "!==",
}


def own_name(name: str) -> str:
    """A local name as JavaScript has it."""
    return name + "_" if name in TAKEN else name


class Writer:
    """Text of JavaScript for the syntax tree of one function or expression."""

    def __init__(self, free: Callable[[str, bool], str], scope: dict[str, Any] | None = None) -> None:
        self.free = free
        self.scope = scope or {}
        self.local: set[str] = set()

    def function(self, tree: ast.FunctionDef) -> str:
        names = [arg.arg for arg in (*tree.args.args, *tree.args.kwonlyargs)]
        defaults: list[ast.expr | None] = [*tree.args.defaults]
        values = [None] * (len(tree.args.args) - len(defaults)) + defaults + list(tree.args.kw_defaults)
        assigned = {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        } - set(names)
        self.local = assigned | set(names)
        head = ", ".join(
            own_name(name) if value is None else f"{own_name(name)} = {self.value(value)}"
            for name, value in zip(names, values, strict=True)
        )
        body = tree.body[1:] if ast.get_docstring(tree) else tree.body
        declared = f"let {', '.join(sorted(map(own_name, assigned)))};\n" if assigned else ""
        return f"function {tree.name}({head}) {{\n{declared}{self.block(body)}}}"

    def block(self, body: Iterable[ast.stmt]) -> str:
        return "".join(self.statement(each) + "\n" for each in body)

    def statement(self, node: ast.stmt) -> str:
        match node:
            case ast.Return(value=value):
                return f"return {self.value(value)};" if value else "return;"
            case ast.Assign(targets=targets, value=value):
                return "".join(f"{self.target(each)} = " for each in targets) + f"{self.value(value)};"
            case ast.AnnAssign(target=target, value=value):
                return f"{self.target(target)} = {self.value(value)};" if value else ""
            case ast.AugAssign(target=target, op=op, value=value):
                left = self.target(target)
                return f"{left} = {self.arithmetic(left, op, self.value(value), _is_list(value))};"
            case ast.Expr(value=value):
                return f"{self.value(value)};"
            case ast.If(test=test, body=body, orelse=orelse):
                other = f" else {{\n{self.block(orelse)}}}" if orelse else ""
                return f"if ({self.test(test)}) {{\n{self.block(body)}}}{other}"
            case ast.While(test=test, body=body, orelse=[]):
                return f"while ({self.test(test)}) {{\n{self.block(body)}}}"
            case ast.For(target=target, iter=each, body=body, orelse=[]):
                return f"for ({self.target(target)} of {self.value(each)}) {{\n{self.block(body)}}}"
            case ast.Raise(exc=ast.Call(args=[said])):
                return f"throw new Error({self.value(said)});"
            case ast.Break():
                return "break;"
            case ast.Continue():
                return "continue;"
            case ast.Assert() | ast.Pass() | ast.Import() | ast.ImportFrom():
                return ""
        raise NotImplementedError(f"{ast.unparse(node)!r:.80} cannot be translated")

    def target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Tuple):
            return f"[{', '.join(self.target(each) for each in node.elts)}]"
        if isinstance(node, ast.Name):
            return own_name(node.id)
        return self.value(node)

    def test(self, node: ast.expr) -> str:
        if isinstance(node, ast.Compare):
            return self.value(node)
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return "(" + sign.join(self.test(each) for each in node.values) + ")"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!{self.test(node.operand)}"
        return f"truth({self.value(node)})"

    def value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=constant):
                return "null" if constant is None else json.dumps(constant)
            case ast.Name(id=name):
                return own_name(name) if name in self.local else self.free(name, False)
            case ast.Attribute(value=of, attr=name):
                if ast.unparse(node) in ("math.nan", "math.inf"):
                    return "NaN" if name == "nan" else "Infinity"
                return f"{self.value(of)}.{name}"
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Mult) and isinstance(left, ast.List):
                    return f"range({self.value(right)}).flatMap(() => {self.value(left)})"
                lists = _is_list(left) or _is_list(right)
                return self.arithmetic(self.value(left), op, self.value(right), lists)
            case ast.UnaryOp(op=op, operand=operand):
                return f"(!{self.test(operand)})" if isinstance(op, ast.Not) else f"(-{self.value(operand)})"
            case ast.BoolOp(op=op, values=values):
                name = "both" if isinstance(op, ast.And) else "either"
                text = self.value(values[-1])
                for each in reversed(values[:-1]):
                    text = f"{name}({self.value(each)}, () => {text})"
                return text
            case ast.Compare():
                return self.comparison(node)
            case ast.IfExp(test=test, body=yes, orelse=no):
                return f"({self.test(test)} ? {self.value(yes)} : {self.value(no)})"
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return f"[{self.items(elts)}]"
            case ast.Set(elts=elts):
                return f"new Set([{self.items(elts)}])"
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                inside = ", ".join(
                    f"...{self.value(value)}" if key is None else f"[{self.value(key)}]: {self.value(value)}"
                    for key, value in pairs
                )
                return f"({{{inside}}})"
            case (
                ast.ListComp(elt=elt, generators=generators)
                | ast.GeneratorExp(elt=elt, generators=generators)
            ):
                return self.comprehension(elt, generators)
            case ast.SetComp(elt=elt, generators=generators):
                return f"new Set({self.comprehension(elt, generators)})"
            case ast.DictComp(key=key, value=of, generators=generators):
                pair = ast.Tuple(elts=[key, of], ctx=ast.Load())
                return f"Object.fromEntries({self.comprehension(pair, generators)})"
            case ast.Subscript(value=of, slice=index):
                return self.subscript(of, index)
            case ast.JoinedStr(values=values):
                return "(" + " + ".join(['""', *(self.piece(each) for each in values)]) + ")"
            case ast.Lambda(args=args, body=body):
                names = [arg.arg for arg in args.args]
                with_names, self.local = self.local, self.local | set(names)
                text = f"(({', '.join(map(own_name, names))}) => {self.value(body)})"
                self.local = with_names
                return text
            case ast.Call():
                return self.call(node)
        raise NotImplementedError(f"{ast.unparse(node)!r:.80} cannot be translated")

    def items(self, elts: Iterable[ast.expr]) -> str:
        return ", ".join(
            f"...{self.value(each.value)}" if isinstance(each, ast.Starred) else self.value(each)
            for each in elts
        )

    def piece(self, node: ast.expr) -> str:
        if isinstance(node, ast.FormattedValue):
            assert (node.format_spec, node.conversion) == (None, -1), ast.unparse(node)
            return f"plain({self.value(node.value)})"
        return self.value(node)

    def arithmetic(self, left: str, op: ast.operator, right: str, lists: bool) -> str:
        if lists:
            assert isinstance(op, ast.Add)
            return f"[...{left}, ...{right}]"
        if isinstance(op, ast.FloorDiv):
            return f"Math.floor({left} / {right})"
        if isinstance(op, ast.Mod):
            return f"mod({left}, {right})"
        return f"({left} {OPERATORS[type(op)]} {right})"

    def comparison(self, node: ast.Compare) -> str:
        parts, left = [], node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                text = f"has({self.value(right)}, {self.value(left)})"
                parts.append(text if isinstance(op, ast.In) else f"!{text}")
            else:
                parts.append(f"{self.value(left)} {OPERATORS[type(op)]} {self.value(right)}")
            left = right
        return "(" + " && ".join(parts) + ")"

    def comprehension(self, elt: ast.expr, generators: list[ast.comprehension]) -> str:
        first, *rest = generators
        source = f"[...{self.value(first.iter)}]"
        names = {node.id for node in ast.walk(first.target) if isinstance(node, ast.Name)}
        outside, self.local = self.local, self.local | names
        target = self.target(first.target)
        for condition in first.ifs:
            source += f".filter(({target}) => {self.test(condition)})"
        inside = self.comprehension(elt, rest) if rest else self.value(elt)
        if inside != target:
            body = f"({inside})" if inside.startswith("{") else inside
            source += f".{'flatMap' if rest else 'map'}(({target}) => {body})"
        self.local = outside
        return source

    def subscript(self, of: ast.expr, index: ast.expr) -> str:
        owner = self.value(of)
        if isinstance(index, ast.Slice):
            assert index.step is None, ast.unparse(index)
            low = self.value(index.lower) if index.lower else "0"
            return f"{owner}.slice({low}{', ' + self.value(index.upper) if index.upper else ''})"
        if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
            place = f"{owner}.length - {self.value(index.operand)}"
            return f"{owner}[{place}]"
        return f"{owner}[{self.value(index)}]"

    def call(self, node: ast.Call) -> str:
        name = ast.unparse(node.func)
        if name not in self.local and name in ("list", "tuple", "reversed", "set", "map", "all", "any"):
            return self.collection(name, node)
        args = self.items(node.args)
        if name in DOTTED:
            return f"{DOTTED[name]}({', '.join([args, *(self.value(word.value) for word in node.keywords)])})"
        if name == "itertools.chain.from_iterable":
            return f"{args}.flat(1)"
        if isinstance(node.func, ast.Attribute):
            return self.method(node.func, args)
        if name in self.local:
            return f"{own_name(name)}({args})"
        if name in ("min", "max"):
            return self.extreme(name, node)
        if name in BUILTINS:
            return f"{BUILTINS[name]}({args})"
        known = self.free(name, True)
        if known == "":  # a record
            fields = ", ".join(f"{word.arg}: {self.value(word.value)}" for word in node.keywords)
            assert not node.args
            return f"({{{fields}}})"
        return self.own_call(known, node)

    def own_call(self, name: str, node: ast.Call) -> str:
        """A call of a translated function; keywords take their places."""
        if not node.keywords:
            return f"{name}({self.items(node.args)})"
        parameters = list(inspect.signature(self.scope[name]).parameters)
        if len(node.keywords) == 1 and node.keywords[0].arg is None:
            assert not node.args
            places = ", ".join(f"k.{parameter}" for parameter in parameters)
            return f"((k) => {name}({places}))({self.value(node.keywords[0].value)})"
        named = {word.arg: self.value(word.value) for word in node.keywords}
        places = ", ".join(named.get(parameter, "undefined") for parameter in parameters[len(node.args) :])
        return f"{name}({', '.join(filter(None, [self.items(node.args), places]))})"

    def extreme(self, name: str, node: ast.Call) -> str:
        if len(node.args) > 1:
            return f"Math.{name}({self.items(node.args)})"
        words = {word.arg: word.value for word in node.keywords}
        source = self.value(node.args[0])
        key = f", {self.value(words['key'])}" if "key" in words else ""
        found = f"{'least' if name == 'min' else 'most'}({source}{key})"
        return f"({found} ?? {self.value(words['default'])})" if "default" in words else found

    def collection(self, name: str, node: ast.Call) -> str:
        if not node.args:
            return "new Set()" if name == "set" else "[]"
        *first, last = node.args
        source = self.value(last)
        match name:
            case "map":
                function = (
                    self.value(first[0]) if not isinstance(first[0], ast.Name) else self.mapper(first[0].id)
                )
                return f"[...{source}].map((x) => {function}(x))"
            case "all" | "any":
                return f"[...{source}].{'every' if name == 'all' else 'some'}(truth)"
            case "set":
                return f"new Set({source})"
            case "reversed":
                return f"[...{source}].reverse()"
        return f"[...{source}]"

    def mapper(self, name: str) -> str:
        return BUILTINS[name] if name in BUILTINS else self.free(name, False)

    def method(self, function: ast.Attribute, args: str) -> str:
        owner, name = self.value(function.value), function.attr
        match name:
            case "append":
                return f"{owner}.push({args})"
            case "get":
                return f"get({owner}, {args})"
            case "join":
                return f"{args}.join({owner})"
            case "items":
                return f"Object.entries({owner})"
            case "values" | "keys":
                return f"Object.{name}({owner})"
            case "count":
                return f"count({owner}, {args})"
            case "bit_length":
                return f"bit_length({owner})"
            case "startswith":
                return f"{owner}.startsWith({args})"
        return f"{owner}.{name}({args})"


def _is_list(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_list(node.left)
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.List | ast.ListComp | ast.Tuple) or name in ("list", "tuple")
