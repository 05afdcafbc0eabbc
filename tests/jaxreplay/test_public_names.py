"""`import jaxreplay` gives every public module and imports rarely used ones lazily."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import jaxreplay
from jaxreplay import methods
from tests.refusals import refused


@pytest.mark.parametrize("package", [jaxreplay, methods], ids=lambda package: package.__name__)
def test_every_public_module_is_an_attribute_of_its_package(package):
    modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
    public = {name for name in modules if not name.startswith("_")}
    assert public <= set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, name) for name in package.__all__)
    for name in public:
        assert getattr(package, name) is importlib.import_module(f"{package.__name__}.{name}")


def test_rarely_used_modules_are_imported_on_first_access():
    program = (
        "import sys, jaxreplay\n"
        "late = ('jaxreplay.datasets', 'jaxreplay.microscope', 'jaxreplay.testing')\n"
        "assert not any(name in sys.modules for name in late)\n"
        "assert jaxreplay.datasets.fill and jaxreplay.testing.check_method\n"
        "assert jaxreplay.microscope.look\n"
        "assert all(name in sys.modules for name in late)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_names_raise_an_attribute_error():
    with refused("jaxreplay", "nothing", error=AttributeError):
        _ = jaxreplay.nothing
