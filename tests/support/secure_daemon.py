"""A real `trimtabd` on TCP with TLS, and credentials for those who call it."""

from __future__ import annotations

from pathlib import Path

from support.certificates import Authority
from support.daemon_process import DaemonProcess

ROLES = """
[[server.role]]
role = "engine"
names = ["gpu-*"]
token_file = "engine.tokens"
[[server.role]]
role = "viewer"
names = ["grafana"]
[[server.role]]
role = "operator"
names = ["kim"]
token_file = "operator.tokens"
"""
OPERATOR_TOKEN, ENGINE_TOKEN = "ooPh3Eeg8wa1thei", "kuh3Gahz9ohn6eiw"


class SecureDaemon(DaemonProcess):
    """Engines are `gpu-*`, `grafana` looks, `kim` orders; or they show a token.

    Args:
        folder: Where certificates, tokens and settings go.
        mutual: Whether clients need a certificate; otherwise they need a token.
        more: More of the settings.
    """

    def __init__(self, folder: Path, mutual: bool = True, more: str = "") -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.authority.issue_server()
        self.write_tokens("engine", f"engines {ENGINE_TOKEN}\n")
        self.write_tokens("operator", f"deploys {OPERATOR_TOKEN}\n")
        client_ca = 'client_ca = "ca.pem"\n' if mutual else ""
        roles = ROLES if mutual else "\n".join(line for line in ROLES.splitlines() if "names" not in line)
        roles = roles if mutual else roles.replace('[[server.role]]\nrole = "viewer"\n', "")
        (folder / "trimtabd.toml").write_text(
            f'[server]\nlisten = "127.0.0.1:0"\n[server.tls]\ncert = "server.pem"\nkey = "server.key"\n'
            f"{client_ca}{roles}\n{more}"
        )
        super().__init__("--config", str(folder / "trimtabd.toml"))

    def write_tokens(self, role: str, content: str) -> Path:
        """Put tokens into the file of a role."""
        path = self.folder / f"{role}.tokens"
        path.touch(mode=0o600)
        path.write_text(content)
        return path

    @property
    def address(self) -> str:
        """Its TCP address."""
        return str(self.started()["listen"])
