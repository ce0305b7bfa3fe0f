"""How the plugin and the command line secure their connection: variables, files, and what goes wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.certificates import Authority
from trimtab_sglang.channel import CredentialsError, open_channel, shown
from trimtab_sglang.settings import Credentials, SettingError, read_credentials, read_settings


def test_the_variables_name_files(tmp_path: Path) -> None:
    environ = {
        "TRIMTAB_TLS_CA": "ca.pem",
        "TRIMTAB_TLS_CERT": " me.pem ",
        "TRIMTAB_TLS_KEY": "me.key",
        "TRIMTAB_TLS_NAME": "trimtab.example.org",
        "TRIMTAB_TOKEN_FILE": "token",
    }
    found = read_settings(environ).credentials
    assert found == Credentials("ca.pem", "me.pem", "me.key", "trimtab.example.org", "token")
    assert found.secure
    assert not read_credentials({"TRIMTAB_TOKEN_FILE": "token"}).secure
    assert read_credentials({}) == Credentials()


@pytest.mark.parametrize(("given", "lacking"), [("CERT", "KEY"), ("KEY", "CERT")])
def test_a_certificate_and_its_key_go_together(given: str, lacking: str) -> None:
    with pytest.raises(SettingError, match=f"TRIMTAB_TLS_{lacking} is missing"):
        read_credentials({f"TRIMTAB_TLS_{given}": "x"})


def test_a_token_does_not_go_over_the_network_for_everybody_to_read(tmp_path: Path) -> None:
    credentials = Credentials(token_file=str(tmp_path / "token"))
    with pytest.raises(CredentialsError, match="TRIMTAB_TOKEN_FILE needs TLS on TCP: set TRIMTAB_TLS_CA as well"):
        open_channel("127.0.0.1:1", credentials, ())
    open_channel("unix:/nowhere", credentials, ()).close()


@pytest.mark.parametrize("variable", ["TRIMTAB_TLS_CA", "TRIMTAB_TLS_CERT", "TRIMTAB_TLS_KEY"])
def test_a_file_that_is_missing_is_named_with_its_variable(tmp_path: Path, variable: str) -> None:
    environ = {**Authority(tmp_path).issue("me").environment, variable: "/nowhere/x.pem"}
    with pytest.raises(CredentialsError, match=f"{variable}: /nowhere/x.pem cannot be read: No such file"):
        open_channel("127.0.0.1:1", read_credentials(environ), ())


@pytest.mark.parametrize("content", ["ooPh3Eeg8wa1thei", "ooPh3Eeg8wa1thei\n", "kim ooPh3Eeg8wa1thei\n"])
def test_a_token_file_has_the_token_alone_or_a_line_of_the_controllers_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    assert shown(Credentials(token_file=str(path))) == (("authorization", "Bearer ooPh3Eeg8wa1thei"),)
    path.write_text("new-new-new-new-new")
    assert shown(Credentials(token_file=str(path)))[0][1].endswith("new"), "read for every call"
    assert shown(Credentials()) == ()


@pytest.mark.parametrize("content", ["", " \n", "kim tök€n-tök€n-tök€n"])
def test_a_token_file_without_a_token_is_said_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(CredentialsError, match=f"TRIMTAB_TOKEN_FILE: {path} has no token"):
        shown(Credentials(token_file=str(path)))
