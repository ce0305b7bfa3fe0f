"""Who may do what: every call against every kind of caller, over real connections with real certificates."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.certificates import Authority
from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab.server.gate import ADMIN, CONTROL, NEEDED
from trimtab.store.content import AdminContent, content_of
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtabpb.v1 import admin_pb2 as pb
from trimtabpb.v1 import admin_pb2_grpc, control_pb2, control_pb2_grpc

OK, NO, WHO = (
    grpc.StatusCode.OK,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
# A stranger without a certificate does not even get a connection.
OUT = grpc.StatusCode.UNAVAILABLE
TOKENS = {
    "engine": "engines kuh3Gahz9ohn6eiw",
    "viewer": "grafana eiGh9oor4Ohxoh5a",
    "operator": "deploys ooPh3Eeg8wa1thei",
}
ROLE = pb.SetPolicyRequest
ALL = pb.Selector(engine_ids=["llama-a"])
BAND = pb.SetPolicyRequest(selector=ALL, policy="fixed", parameters={"steps": "1"})

# What a daemon without engines says to those whom it lets in.
WITHOUT_ENGINES = {"GetEngine": grpc.StatusCode.NOT_FOUND, "Watch": grpc.StatusCode.DEADLINE_EXCEEDED}

Call = Callable[[grpc.Channel, Any], None]


def admin(name: str, request: Any) -> Call:
    def call(channel: grpc.Channel, metadata: Any) -> None:
        getattr(admin_pb2_grpc.AdminServiceStub(channel), name)(request, timeout=10, metadata=metadata)

    return call


def watch(channel: grpc.Channel, metadata: Any) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    next(iter(stub.Watch(pb.WatchRequest(), timeout=3, metadata=metadata)))


def connect(channel: grpc.Channel, metadata: Any) -> None:
    stub = control_pb2_grpc.ControlServiceStub(channel)
    hello = control_pb2.EngineMessage(hello=control_pb2.Hello(protocol_version=1, engine_id="probe", boot_id="b"))
    bye = control_pb2.EngineMessage(goodbye=control_pb2.Goodbye())
    list(stub.Connect(iter([hello, bye]), timeout=10, metadata=metadata))


def health(channel: grpc.Channel, metadata: Any) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    stub.Check(health_pb2.HealthCheckRequest(), timeout=10, metadata=metadata)


CALLS: dict[str, Call] = {
    "Connect": connect,
    "ListEngines": admin("ListEngines", pb.ListEnginesRequest()),
    "GetEngine": admin("GetEngine", pb.GetEngineRequest(engine_id="llama-a")),
    "Watch": watch,
    "SetPolicy, asked": admin("SetPolicy", pb.SetPolicyRequest()),
    "Pin": admin("Pin", pb.PinRequest(selector=ALL, any_plain=True)),
    "Pin, frozen": admin("Pin", pb.PinRequest(selector=ALL, in_force=True)),
    "Unpin": admin("Unpin", pb.UnpinRequest(selector=ALL)),
    "SetPolicy": admin("SetPolicy", BAND),
    "SetPolicy, shadow": admin("SetPolicy", pb.SetPolicyRequest(selector=ALL, policy="ucb", role=ROLE.ROLE_SHADOW)),
    "PromotePolicy": admin("PromotePolicy", pb.PromotePolicyRequest(selector=ALL)),
    "SetPolicy, canary": admin("SetPolicy", pb.SetPolicyRequest(selector=ALL, policy="exp3", role=ROLE.ROLE_CANARY)),
    "WithdrawPolicy": admin("WithdrawPolicy", pb.WithdrawPolicyRequest()),
    "Health": health,
}
READS, ORDERS = ("ListEngines", "GetEngine", "Watch", "SetPolicy, asked"), (
    "Pin", "Pin, frozen", "Unpin", "SetPolicy", "SetPolicy, shadow", "PromotePolicy", "SetPolicy, canary",
    "WithdrawPolicy",
)  # fmt: skip


@dataclass(frozen=True)
class Caller:
    """Somebody who calls: on which address, with which certificate or token, and what comes back for each call."""

    engine: grpc.StatusCode
    reads: grpc.StatusCode
    orders: grpc.StatusCode
    health: grpc.StatusCode = OK
    certificate: str = ""
    token: str = ""
    where: str = "mutual"

    def expected(self, call: str) -> grpc.StatusCode:
        if call == "Connect":
            return self.engine
        return self.health if call == "Health" else self.reads if call in READS else self.orders


CALLERS: dict[str, Caller] = {
    "an engine, by certificate": Caller(OK, NO, NO, certificate="gpu-7"),
    "a viewer, by certificate": Caller(NO, OK, NO, certificate="grafana"),
    "an operator, by certificate": Caller(NO, OK, OK, certificate="kim"),
    "an engine that is an operator as well": Caller(OK, OK, OK, certificate="all-in-one"),
    "a certificate without a role": Caller(WHO, WHO, WHO, certificate="printer"),
    "a common name that the alternative names do not repeat": Caller(WHO, WHO, WHO, certificate="kim-as-printer"),
    "a certificate of another authority": Caller(OUT, OUT, OUT, OUT, certificate="forged-kim"),
    "a stranger without a certificate": Caller(OUT, OUT, OUT, OUT),
    "a stranger without TLS": Caller(OUT, OUT, OUT, OUT, certificate="-"),
    "an engine, by token": Caller(OK, NO, NO, token="engine", where="tokens"),
    "a viewer, by token": Caller(NO, OK, NO, token="viewer", where="tokens"),
    "an operator, by token": Caller(NO, OK, OK, token="operator", where="tokens"),
    "somebody without a token": Caller(WHO, WHO, WHO, where="tokens"),
    "somebody with a wrong token": Caller(WHO, WHO, WHO, token="wrong", where="tokens"),
    "somebody with an empty token": Caller(WHO, WHO, WHO, token="empty", where="tokens"),
    "a viewer's certificate with an operator's token": Caller(
        NO, OK, OK, certificate="grafana", token="operator", where="mutual"
    ),
    "an operator's certificate with a wrong token": Caller(WHO, OK, OK, certificate="kim", token="wrong"),
    "whoever opens the socket": Caller(OK, OK, OK, where="unix"),
    "whoever opens a socket for viewers": Caller(NO, OK, NO, where="unix-viewers"),
}


@dataclass(frozen=True)
class Grounds:
    """Daemons to call, and what is needed to call them."""

    addresses: Mapping[str, str]
    authority: Authority
    forger: Authority
    daemons: Mapping[str, DaemonProcess]

    def channel(self, caller: Caller) -> grpc.Channel:
        address = self.addresses[caller.where]
        options = [("grpc.use_local_subchannel_pool", 1)]
        if address.startswith("unix:") or caller.certificate == "-":
            return grpc.insecure_channel(address, options)
        if caller.certificate:
            names = {"gpu-7": ["gpu-7.example.org"], "kim-as-printer": ["printer.example.org"]}
            authority = self.forger if caller.certificate == "forged-kim" else self.authority
            common_name = {"forged-kim": "kim", "kim-as-printer": "kim"}.get(caller.certificate, caller.certificate)
            issued = authority.issue(common_name, *names.get(caller.certificate, []))
            credentials = grpc.ssl_channel_credentials(
                self.authority.ca.read_bytes(), issued.key.read_bytes(), issued.cert.read_bytes()
            )
        else:
            credentials = grpc.ssl_channel_credentials(self.authority.ca.read_bytes())
        return grpc.secure_channel(address, credentials, options)


def settings(grounds: Path, mutual: bool) -> str:
    ca = f'client_ca = "{grounds / "ca.pem"}"' if mutual else ""
    by_name = {
        "engine": '["gpu-*.example.org", "all-in-one"]',
        "viewer": '["grafana"]',
        "operator": '["kim", "all-in-one"]',
    }
    roles = "\n".join(
        f'[[server.role]]\nrole = "{role}"\ntoken_file = "{grounds / role}.tokens"\n'
        + (f"names = {by_name[role]}\n" if mutual else "")
        for role in TOKENS
    )
    return f"""
[server]
listen = "127.0.0.1:0"
[server.tls]
cert = "{grounds / "server.pem"}"
key = "{grounds / "server.key"}"
{ca}
{roles}
"""


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as name, ExitStack() as stack:
        folder = Path(name)
        authority = Authority(folder)
        authority.issue_server()
        for role, line in TOKENS.items():
            (folder / f"{role}.tokens").touch(mode=0o600)
            (folder / f"{role}.tokens").write_text(f"# for tests\n{line}\n")
        files = {
            "mutual": settings(folder, mutual=True),
            "tokens": settings(folder, mutual=False),
            "unix-viewers": '[server]\nsocket_roles = ["viewer"]\n',
        }
        daemons = {}
        for kind, text in files.items():
            (folder / f"{kind}.toml").write_text(text)
            daemons[kind] = stack.enter_context(DaemonProcess("--config", str(folder / f"{kind}.toml")))
        addresses = {kind: daemons[kind].started()["listen"] for kind in ("mutual", "tokens")}
        addresses |= {"unix": daemons["mutual"].target, "unix-viewers": daemons["unix-viewers"].target}
        for kind in ("mutual", "tokens"):
            engine = stack.enter_context(ScriptedEngine(daemons[kind].target, "llama-a"))
            engine.start()
            engine.follow(engine.next_lease())
            engine.report(engine.decode())
        yield Grounds(addresses, authority, Authority(folder / "forger", "forger"), daemons)
        assert not any("Traceback" in daemon.text() for daemon in daemons.values())


def test_the_table_has_every_call_that_there_is() -> None:
    services = [
        *(f"{CONTROL}{method.name}" for method in control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods),
        *(f"{ADMIN}{method.name}" for method in pb.DESCRIPTOR.services_by_name["AdminService"].methods),
    ]
    assert {name.rpartition("/")[2] for name in services} == {name.partition(",")[0] for name in CALLS} - {"Health"}
    assert {name for name in NEEDED if not name.startswith("/grpc.")} <= set(services)


@pytest.mark.parametrize("who", CALLERS)
def test_every_call_of_this_caller_is_let_in_or_turned_away(grounds: Grounds, who: str) -> None:
    caller = CALLERS[who]
    shown = {"wrong": "0000000000000000", "empty": ""}
    token = shown.get(caller.token, TOKENS.get(caller.token, "").partition(" ")[2])
    metadata = (("authorization", f"Bearer {token}"),) if caller.token else ()
    wanted = {name: caller.expected(name) for name in CALLS}
    if caller.where == "unix-viewers":
        wanted |= WITHOUT_ENGINES
    with grounds.channel(caller) as channel:
        # Orders build on each other; whoever may give none can try everything at once.
        at_once = 1 if caller.orders is OK else len(CALLS)
        with ThreadPoolExecutor(at_once) as pool:
            outcomes = pool.map(lambda call: outcome(call, channel, metadata), CALLS.values())
            found = dict(zip(CALLS, outcomes, strict=True))
    assert found == wanted


def outcome(call: Call, channel: grpc.Channel, metadata: Any) -> grpc.StatusCode:
    try:
        call(channel, metadata)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return OK


def test_who_is_turned_away_changes_nothing_and_is_counted_and_named(grounds: Grounds) -> None:
    before = grounds.daemons["mutual"].admin.ListEngines(pb.ListEnginesRequest())
    with grounds.channel(CALLERS["a viewer, by certificate"]) as channel, pytest.raises(grpc.RpcError) as caught:
        CALLS["Pin"](channel, ())
    assert caught.value.details() == "Pin takes role operator; cert:grafana may not, its roles: viewer"
    after = grounds.daemons["mutual"].admin.ListEngines(pb.ListEnginesRequest())
    assert [e.pin for e in after.engines] == [e.pin for e in before.engines]
    counted = after.controller.refused["permission_denied"], before.controller.refused["permission_denied"]
    assert counted[0] == counted[1] + 1
    audit = [line for line in grounds.daemons["mutual"].log() if line.get("call") == "Pin"]
    turned_away = [line for line in audit if line["outcome"] == "PERMISSION_DENIED" and line["who"] == "cert:grafana"]
    assert turned_away
    assert "llama-a" in turned_away[-1]["request"]


def test_the_journal_knows_by_what_the_caller_of_an_order_was_known(grounds: Grounds) -> None:
    with grounds.channel(CALLERS["an operator, by token"]) as channel:
        request = pb.UnpinRequest(selector=ALL, owner="kim@laptop")
        token = TOKENS["operator"].partition(" ")[2]
        admin("Unpin", request)(channel, (("authorization", f"Bearer {token}"),))
    with Journal(grounds.daemons["tokens"].state) as journal:
        orders = [content_of(entry, AdminContent) for entry in journal.entries(kinds={Kind.ADMIN})]
    assert (orders[-1].call, orders[-1].who, orders[-1].outcome) == ("Unpin", "token:deploys", "OK")
    assert (orders[-1].request["owner"], orders[-1].engines) == ("kim@laptop", ("llama-a",))


def test_no_token_is_ever_logged_or_answered(grounds: Grounds) -> None:
    with grounds.channel(CALLERS["an operator, by token"]) as channel:
        for token in ("ooPh3Eeg8wa1thei", "ooPh3Eeg8wa1thxx"):
            outcome(CALLS["Unpin"], channel, (("authorization", f"Bearer {token}"),))
    text = grounds.daemons["tokens"].text()
    assert "ooPh3Eeg8wa1th" not in text
    assert json.dumps("token:deploys") in text
