"""Prompts for the real model: of four kinds, of one length, the same for the same seed."""

from __future__ import annotations

import pytest

from real_prompts import KINDS, mixed, prompts

ORDINARY = range(300, 400)
LENGTH = 40


def encode(text: str) -> list[int]:
    """A token for each character."""
    return [ord(character) for character in text]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_have_the_length_asked_for_and_depend_on_the_seed_alone(kind: str) -> None:
    first = prompts(kind, 20, 1, LENGTH, encode, ORDINARY)
    assert {len(prompt) for prompt in first} == {LENGTH}
    assert first == prompts(kind, 20, 1, LENGTH, encode, ORDINARY)
    assert first[:5] == prompts(kind, 5, 1, LENGTH, encode, ORDINARY)
    assert first != prompts(kind, 20, 2, LENGTH, encode, ORDINARY)


def test_long_prompts_are_made_of_several_texts() -> None:
    (long,) = prompts("prose", 1, 1, 5000, encode, ORDINARY)
    assert len(long) == 5000


def test_random_prompts_are_of_ordinary_tokens() -> None:
    assert all(token in ORDINARY for token in prompts("random", 1, 1, 500, encode, ORDINARY)[0])


def test_repetition_repeats() -> None:
    (prompt,) = prompts("repetition", 1, 1, 400, encode, ORDINARY)
    text = "".join(map(chr, prompt))
    assert any(text.count(text[-length:]) > 2 for length in range(10, 120))


def test_mixed_prompts_come_in_turns() -> None:
    found = mixed(10, 3, LENGTH, encode, ORDINARY)
    assert found[1::4] == prompts("prose", 3, 3, LENGTH, encode, ORDINARY)
    assert found[3::4] == prompts("random", 2, 3, LENGTH, encode, ORDINARY)
