"""Everything that Trimtab raises on purpose."""

from __future__ import annotations


class TrimtabError(Exception):
    """Root of all errors of Trimtab. The message says what is wrong and what to do."""


class ConfigError(TrimtabError):
    """A setting that cannot be used. `key` is its path in the configuration."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class WireError(TrimtabError):
    """A message that breaks the protocol. `field` names the place."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class UnknownEngineError(TrimtabError):
    """No engine has this id."""


class NotOfferedError(TrimtabError):
    """The engine cannot run what was asked for."""


class NoSuchModeError(NotOfferedError):
    """The engine was started without the mode that was asked for."""


class PolicyError(TrimtabError):
    """An unknown policy, or parameters that it does not take."""


class DataError(TrimtabError):
    """A file whose content cannot be used. `place` is the file and line or column."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem
