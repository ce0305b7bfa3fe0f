"""As `sitecustomize`: empty stand-ins for optional packages that SGLang imports and these measurements never use."""

import importlib.abc
import importlib.machinery
import sys
import types

ABSENT = frozenset({"xgrammar", "llguidance", "IPython", "soundfile", "_soundfile"})


class _Anything(type):
    """A class with any attribute, which is that class again."""

    def __getattr__(cls, name):  # type: ignore[no-untyped-def]
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Empty(metaclass=_Anything):
    def __init__(self, *_arguments, **_more):  # type: ignore[no-untyped-def]
        pass

    def __call__(self, *_arguments, **_more):  # type: ignore[no-untyped-def]
        return self

    def __class_getitem__(cls, _item):  # type: ignore[no-untyped-def]
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, _source, _handler):  # type: ignore[no-untyped-def]
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - as for every package
    __version__ = "0.0.0"

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Empty,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line: a package that is really there comes first."""

    def find_spec(self, name, _path, _target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return _Module(spec.name)

    def exec_module(self, _module):  # type: ignore[no-untyped-def]
        pass


sys.meta_path.append(_Finder())
