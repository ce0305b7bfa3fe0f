"""What the tests on the real engine share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_process import ControllerProcess, short_folder
from engine_server import ENGINE_PYTHON, NO_ENGINE, EngineFactory, EngineServer, EngineSettings, make_models


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The interpreter of the engine environment. Without it these tests fail: they are not optional."""
    if not ENGINE_PYTHON.exists():
        pytest.fail(NO_ENGINE, pytrace=False)
    return ENGINE_PYTHON


@pytest.fixture(scope="session")
def models(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tiny models."""
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="session")
def new_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineFactory:
    """Makes engines, not yet started, each with a folder of its own."""
    return lambda settings: EngineServer(settings, models, tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def controller_folder() -> Iterator[Path]:
    """A folder for the socket of a module's controller."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def observing_controller() -> Iterator[ControllerProcess]:
    """A controller for engines that are only observed."""
    with short_folder() as folder, ControllerProcess(folder) as controller:
        yield controller


@pytest.fixture(scope="session")
def plain_engine(new_engine: EngineFactory, observing_controller: ControllerProcess) -> Iterator[EngineServer]:
    """An engine without speculation: what it generates is right."""
    environment = {"TRIMTAB_CONTROLLER": observing_controller.address, "TRIMTAB_MODE": "act"}
    with new_engine(EngineSettings("noisy", "none", environment=environment)) as engine:
        yield engine
