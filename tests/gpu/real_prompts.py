"""Prompts of four kinds for a real model, made up from small tables: the same for the same seed.

    python tests/gpu/real_prompts.py MODELS/target [--kind code] [--count 3] [--seed 0]      to read some

code        a module that begins with a function or two and breaks off in the next
prose       the beginning of a story, a report or a letter
repetition  a line or two again and again
random      tokens drawn evenly from the vocabulary: no text at all

A prompt is a list of token ids of a given length; what a longer text has too much is cut off at its front, so that the
model goes on from where the text ends. Checks and training take different seeds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

KINDS = ("code", "prose", "repetition", "random")
TRAINING_SEED, CHECKING_SEED = 1, 2
Encode = Callable[[str], list[int]]

THINGS = (
    "order", "ticket", "sensor", "invoice", "train", "garden", "letter", "bridge", "harbour", "recipe", "engine", "map",
    "lamp", "river", "library", "signal", "parcel", "window", "market", "ladder", "clock", "boat", "tree", "mirror",
)  # fmt: skip
PEOPLE = (
    "the baker", "a retired captain", "Mira", "the youngest clerk", "Tomas", "an old teacher", "the mayor", "Ines",
    "a watchmaker", "my neighbour", "the night nurse", "Ola", "a travelling musician", "the gardener", "Jun",
)  # fmt: skip
PLACES = (
    "in a small town by the sea", "at the edge of the forest", "on the top floor", "behind the station",
    "in the valley", "near the old mill", "under the bridge", "in a quiet street", "on the other side of the lake",
)  # fmt: skip
DEEDS = (
    "found a {thing} that nobody had missed", "could not stop thinking about the {thing}", "repaired the {thing} alone",
    "had promised to bring the {thing} back", "sold the {thing} for a handful of coins", "never spoke of the {thing}",
    "wrote a long letter about the {thing}", "waited all winter for the {thing}", "drew the {thing} from memory",
)  # fmt: skip
MOODS = (
    "It was raining again.", "Nobody was surprised.", "The morning was cold and clear.", "The street lay empty.",
    "There was little time left.", "Everything smelled of dust and apples.", "The light had almost gone.",
)  # fmt: skip
FORMS = ("Dear {name},\n\n", "Chapter {n}\n\n", "Report {n}: the {thing}\n\n", "", "Minutes of meeting {n}\n\n")
BEGINNINGS = (
    "Many years later,", "There are {n} reasons why people keep a {thing}. The first is", "In the end, {who}",
    '"I have seen the {thing}," said {who}, "and', "To understand this, one has to know that", "Later, the {thing}",
    "\n\nThe history of the {thing}", "Perhaps it was because of the {other} that", "Science tells us that a {thing}",
    "\n\nWhat happened next", "The {thing} and the {other}",
)  # fmt: skip
VERBS = ("count", "find", "merge", "split", "sort", "load", "check", "total", "rename", "filter", "group", "scale")
FIELDS = ("price", "weight", "name", "day", "count", "level", "size", "score", "owner", "colour", "length", "rank")


def code(source: random.Random) -> str:
    """A module in one of four languages."""
    write = source.choice((_python, _python_class, _javascript, _c))
    parts = [write(source) for _ in range(3)]
    return "\n\n".join(parts)[: -source.randrange(1, 30)]


def _python(source: random.Random) -> str:
    verb, thing, field = source.choice(VERBS), source.choice(THINGS), source.choice(FIELDS)
    limit = source.randrange(2, 100)
    return (
        f"def {verb}_{thing}s({thing}s: list[dict], limit: int = {limit}) -> list[dict]:\n"
        f'    """Return the {thing}s whose {field} is above the limit."""\n'
        f"    found = []\n    for {thing} in {thing}s:\n        if {thing}['{field}'] > limit:\n"
        f"            found.append({thing})\n    return found\n"
    )


def _python_class(source: random.Random) -> str:
    thing, (one, two) = source.choice(THINGS), source.sample(FIELDS, 2)
    return (
        f"class {thing.title()}:\n    def __init__(self, {one}: int, {two}: int) -> None:\n"
        f"        self.{one} = {one}\n        self.{two} = {two}\n\n"
        f"    def {source.choice(VERBS)}(self, other: '{thing.title()}') -> int:\n"
        f"        return self.{one} * other.{two} + {source.randrange(100)}\n"
    )


def _javascript(source: random.Random) -> str:
    verb, thing, field = source.choice(VERBS), source.choice(THINGS), source.choice(FIELDS)
    return (
        f"function {verb}{thing.title()}s({thing}s) {{\n  const result = {{}};\n"
        f"  for (const {thing} of {thing}s) {{\n    const key = {thing}.{field};\n"
        f"    result[key] = (result[key] || 0) + {source.randrange(1, 9)};\n  }}\n  return result;\n}}\n"
    )


def _c(source: random.Random) -> str:
    verb, thing, field = source.choice(VERBS), source.choice(THINGS), source.choice(FIELDS)
    return (
        f"int {verb}_{thing}s(const struct {thing} *items, size_t n)\n{{\n    int total = {source.randrange(10)};\n"
        f"    for (size_t i = 0; i < n; i++)\n        total += items[i].{field};\n    return total;\n}}\n"
    )


def prose(source: random.Random) -> str:
    """A heading or none, two sentences, and the beginning of one more."""
    opening = source.choice(FORMS).format(
        name=source.choice(PEOPLE).split()[-1].title(), n=source.randrange(2, 40), thing=source.choice(THINGS)
    )
    beginning = source.choice(BEGINNINGS).format(
        thing=source.choice(THINGS), other=source.choice(THINGS), who=source.choice(PEOPLE), n=source.randrange(3, 9)
    )
    return f"{opening}{_sentence(source)} {_sentence(source)} {beginning}"


def _sentence(source: random.Random) -> str:
    who, place = source.choice(PEOPLE), source.choice(PLACES)
    deed = source.choice(DEEDS).format(thing=source.choice(THINGS))
    return source.choice(
        (f"{who.capitalize()} {deed} {place}.", f"{place.capitalize()}, {who} {deed}. {source.choice(MOODS)}")
    )


def repetition(source: random.Random) -> str:
    """The same line or two, eight times and more."""
    words = source.sample(THINGS, 3)
    line = source.choice(
        (
            f"The {words[0]} and the {words[1]} are beside the {words[2]}.\n",
            f"{words[0]},{source.randrange(1000)},{words[1]},{source.randrange(100)}\n",
            f"- [ ] {source.choice(VERBS)} the {words[0]}\n- [ ] {source.choice(VERBS)} the {words[1]}\n",
            f'{{"{words[0]}": {source.randrange(1000)}, "{words[1]}": "{words[2]}"}},\n',
            f"{source.choice(PEOPLE).capitalize()} {source.choice(DEEDS).format(thing=words[0])}, again and again. ",
        )
    )
    return line * 16


TEXTS: dict[str, Callable[[random.Random], str]] = {"code": code, "prose": prose, "repetition": repetition}


def prompts(kind: str, count: int, seed: int, length: int, encode: Encode, ordinary: range) -> list[list[int]]:
    """Prompts of one kind, each of exactly `length` tokens.

    Args:
        kind: One of `KINDS`.
        count: How many.
        seed: The same prompts for the same seed.
        length: Tokens of each.
        encode: The tokens of a text.
        ordinary: Tokens to draw random ones from.
    """
    return [_prompt(kind, random.Random(f"{kind}/{seed}/{i}"), length, encode, ordinary) for i in range(count)]


def mixed(count: int, seed: int, length: int, encode: Encode, ordinary: range) -> list[list[int]]:
    """Prompts of all kinds in turns; prompt i is of kind `KINDS[i % 4]`."""
    each = {kind: prompts(kind, -(-count // len(KINDS)), seed, length, encode, ordinary) for kind in KINDS}
    return [each[KINDS[i % len(KINDS)]][i // len(KINDS)] for i in range(count)]


def _prompt(kind: str, source: random.Random, length: int, encode: Encode, ordinary: range) -> list[int]:
    if kind == "random":
        return [source.choice(ordinary) for _ in range(length)]
    text = TEXTS[kind](source)
    while len(tokens := encode(text)) < length:
        text = TEXTS[kind](source) + "\n" + text
    return tokens[-length:]


class Prompter:
    """Prompts for the model in a folder. Needs `tokenizers`.

    Args:
        target: The folder of the checkpoint.
    """

    def __init__(self, target: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        added = self.tokenizer.get_added_tokens_decoder()
        # Control tokens come first in this vocabulary.
        self.ordinary = range(max(added, default=-1) + 1, self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self.tokenizer.encode(text).ids)

    def prompts(self, kind: str, count: int, seed: int, length: int) -> list[list[int]]:
        """Prompts of one kind; see `prompts`."""
        return prompts(kind, count, seed, length, self.encode, self.ordinary)

    def mixed(self, count: int, seed: int, length: int) -> list[list[int]]:
        """Prompts of all kinds in turns; see `mixed`."""
        return mixed(count, seed, length, self.encode, self.ordinary)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print some prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="prose")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args(arguments)
    prompter = Prompter(options.target)
    for tokens in prompter.prompts(options.kind, options.count, options.seed, options.length):
        print(prompter.tokenizer.decode(tokens), end="\n----\n")


if __name__ == "__main__":
    main()
