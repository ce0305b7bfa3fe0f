"""Certificates, keys and tokens: files that nobody else may have read, and tokens that change while the daemon runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.certificates import Authority
from trimtab.access_settings import Role, RoleSection, ServerSection, TlsSection
from trimtab.errors import ConfigError
from trimtab.server.access import Access, certificate_names
from trimtab.server.secret_files import LOOK_EVERY_S, MAX_TOKENS, TokenFile, read_tokens, server_credentials

KEY = "server.role[0].token_file"
KIM, LEE = "kim ooPh3Eeg8wa1thei", "lee eiGh9oor4Ohxoh5a"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"# operators\n\n{KIM}\n")
    return path


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_is_known_by_its_name_and_nothing_else_is(tokens: Path) -> None:
    file = TokenFile(KEY, tokens, Clock())
    assert file.name_of("ooPh3Eeg8wa1thei") == "kim"
    for wrong in ("", "kim", "ooPh3Eeg8wa1the", "ooPh3Eeg8wa1theii", "oOPh3Eeg8wa1thei", "é" * 16, "\udce9"):
        assert file.name_of(wrong) is None, wrong


def test_the_tokens_themselves_are_not_kept_in_memory(tokens: Path) -> None:
    assert "ooPh3Eeg8wa1thei" not in repr(read_tokens(KEY, tokens))


def test_a_changed_file_counts_within_a_second(tokens: Path) -> None:
    clock = Clock()
    file = TokenFile(KEY, tokens, clock)
    tokens.write_text(f"{LEE}\n")
    assert file.name_of("ooPh3Eeg8wa1thei") == "kim", "nobody looks at the file for every call"
    clock.now_s += LOOK_EVERY_S
    assert (file.name_of("ooPh3Eeg8wa1thei"), file.name_of("eiGh9oor4Ohxoh5a")) == (None, "lee")


@pytest.mark.parametrize("harm", ["gone", "open", "garbled"])
def test_a_file_that_cannot_be_used_any_more_lets_nobody_in_until_it_can(tokens: Path, harm: str) -> None:
    clock = Clock()
    file = TokenFile(KEY, tokens, clock)
    match harm:
        case "gone":
            tokens.unlink()
        case "open":
            tokens.chmod(0o644)
        case "garbled":
            tokens.write_text("kim\n")
    clock.now_s += LOOK_EVERY_S
    assert file.name_of("ooPh3Eeg8wa1thei") is None
    tokens.write_text(f"{KIM}\n")
    tokens.chmod(0o600)
    clock.now_s += LOOK_EVERY_S
    assert file.name_of("ooPh3Eeg8wa1thei") == "kim"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("kim\n", ":1: must be NAME TOKEN"),
        (f"\n{KIM} 2026\n", ":2: must be NAME TOKEN"),
        ("kim short\n", ":1: the token of kim is shorter than 16 characters"),
        (f"{KIM}\n" * (MAX_TOKENS + 1), f" has {MAX_TOKENS + 1} tokens, at most {MAX_TOKENS}"),
        ("x" * ((1 << 20) + 1), " is larger than 1048576 bytes"),
    ],
)
def test_a_file_with_something_else_is_refused_with_the_line_and_without_the_token(
    tokens: Path, content: str, words: str
) -> None:
    tokens.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_tokens(KEY, tokens)
    assert str(caught.value).startswith(f"{KEY}: {tokens}{words}")
    assert "short" not in str(caught.value).replace("shorter", "")


@pytest.mark.parametrize(("mode", "fit"), [(0o600, True), (0o400, True), (0o640, True), (0o660, False), (0o604, False)])
def test_a_secret_that_others_can_read_or_write_is_refused(tokens: Path, mode: int, fit: bool) -> None:
    tokens.chmod(mode)
    if fit:
        assert read_tokens(KEY, tokens)
        return
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}: chmod 0600 it"):
        read_tokens(KEY, tokens)


def test_a_secret_of_somebody_else_is_refused(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tokens, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match=r"belongs to user \d+: it must be the daemon's own, or root's"):
        read_tokens(KEY, tokens)


def test_a_token_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    role = RoleSection(Role.VIEWER, token_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"server\.role\[0\]\.token_file: .*none cannot be read: No such file"):
        Access(ServerSection(role=(role,)))


# -- certificates --------------------------------------------------------------------------------


def test_alternative_names_go_before_the_common_name() -> None:
    common, others = {"x509_common_name": [b"kim"]}, {"x509_subject_alternative_name": [b"a.example.org", b"b"]}
    assert certificate_names(common) == ["kim"]
    assert certificate_names({**common, **others}) == ["a.example.org", "b"]
    assert certificate_names({"transport_security_type": [b"ssl"]}) == []


def tls(folder: Path, **changes: str) -> TlsSection:
    server = Authority(folder).issue_server()
    return TlsSection(**{"cert": str(server.cert), "key": str(server.key), "client_ca": str(server.ca), **changes})


def test_files_that_fit_together_are_taken(tmp_path: Path) -> None:
    assert server_credentials(tls(tmp_path)) is not None
    assert server_credentials(tls(tmp_path, client_ca="")) is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cert": "none.pem"}, "server.tls.cert: none.pem cannot be read: No such file or directory"),
        ({"client_ca": "none.pem"}, "server.tls.client_ca: none.pem cannot be read: No such file or directory"),
        ({"cert": "{folder}/text"}, "server.tls.cert: {folder}/text and {folder}/server.key are no pair in PEM: "),
        ({"key": "{folder}/other.key"}, "server.tls.cert: {folder}/server.pem and {folder}/other.key are no pair in "),
        ({"client_ca": "{folder}/text"}, "server.tls.client_ca: {folder}/text has no certificate in PEM: "),
        ({"key": "{folder}/open.key"}, "server.tls.key: {folder}/open.key has mode 0644: chmod 0600 it (0640 at most)"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_named_before_anybody_connects(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    Authority(tmp_path).issue("other")
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "open.key").write_text("no key")
    (tmp_path / "open.key").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        server_credentials(tls(tmp_path, **{key: value.format(folder=tmp_path) for key, value in changes.items()}))
    assert str(caught.value).startswith(words.format(folder=tmp_path))
