import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.markup import render

from support.admin_messages import SILENT, controller, engine
from trimtab.cli import output, overview, page
from trimtab.cli.engines import NO_ENGINES
from trimtab.cli.top import frame, heading
from trimtab.cli.views import EngineView, engine_detail, engine_view
from trimtab.cli.watching import SILENT_AFTER_S, aged
from trimtabpb.v1 import admin_pb2

ENGINES = """\
ENGINE   STATE         MODE        BY                  BATCH  TOKENS/S  ACCEPTED  STEP MS  SWITCHES  RUN/WAIT  LEASE AGE
llama-a  connected     plain_warm  pin 9m58s (canary)    3.5     1,234      1.91     7.25        12       4/1       0.4s
llama-b  disconnected  -           -                       -         -         -        -         0       0/0          -"""  # noqa: E501

ENGINES_NARROW = """\
ENGINE   STATE         MODE        BY                  BATCH  TOKENS/S  ACCEPTED  STEP MS
llama-a  connected     plain_warm  pin 9m58s (canary)    3.5     1,234      1.91     7.25
llama-b  disconnected  -           -                       -         -         -        -"""

DECISION = """\
BATCH  MODE          WHY         P  ACCEPTED  STEP MS  TOKENS/S   FROM     TO
1      speculate(3)  exploit  0.90      1.90     7.25     1,200  1,100  1,300
         plain_warm                        -     5.00         -      -      -
2-4    plain_warm    probe    1.00
5+     speculate(1)  exploit  1.00"""


def text_of(renderable: object) -> str:
    console = Console(width=200, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_table_has_a_row_an_engine_with_dashes_for_what_is_unknown() -> None:
    table = text_of(output.engines_table([engine_view(engine()), engine_view(engine(SILENT))]))
    assert table == ENGINES


def test_a_narrow_terminal_gets_whole_columns_and_fewer() -> None:
    views = [engine_view(engine()), engine_view(engine(SILENT))]
    assert text_of(output.engines_table(views, 91)) == ENGINES_NARROW


def test_a_pin_that_the_engine_has_not_confirmed_is_marked() -> None:
    view = engine_view(engine())
    assert view.pin is not None
    waiting = replace(view, decided_by="lease", pin=replace(view.pin, in_force=False))
    assert render(output.decided_text(waiting)).plain == "lease (pin?)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("pin { range { min_steps: 1 max_steps: 3 } }", "pin 1-3 9m58s (canary)"),
        ("policy { canary: false }", "pin 9m58s"),
    ],
)
def test_a_range_and_a_canary_are_marked(change: str, text: str) -> None:
    changed = engine()
    changed.MergeFrom(engine(change))
    changed.policy.canary = "canary)" in text
    assert render(output.decided_text(engine_view(changed))).plain == text


def test_the_controllers_page_has_a_line_for_every_order() -> None:
    answer = admin_pb2.ListEnginesResponse(engines=[engine()], controller_version="1.2", controller=controller())
    assert list(overview.lines(overview.controller_view(answer))) == [
        ("controller", "version 1.2, since 2023-11-14T22:13:20+00:00"),
        ("engines", "connected=1"),
        (
            "pin",
            "plain for team=chat, not for llama-b; zone=1, 9m58s left, "
            "by kim@ops at 2023-11-14T22:13:20+00:00: latency",
        ),
        ("pin", "steps 1-3 for all, until released, by - at 2023-11-14T22:13:20+00:00: -"),
        ("policy", "fixed for team=chat: steps=3"),
        ("policy", "ucb for all, in shadow: none"),
        ("canary", "goodput on llama-a (10% of all), since 2023-11-14T22:13:20+00:00"),
        ("refused", "permission_denied=3"),
    ]
    answer.journal.problem = "no space left"
    assert list(overview.lines(overview.controller_view(answer)))[-1] == ("journal", "it fails: no space left")


def test_the_page_says_what_the_engine_is_what_is_in_force_and_what_went_wrong() -> None:
    assert dict(page.lines(engine_detail(engine()))) == {
        "engine": "llama-a, connected, last message 0.1s ago",
        "labels": "team=chat",
        "boot": "b1, connected since 2023-11-14T22:13:20+00:00",
        "model": "llama-8b, draft_model -, weight -",
        "software": "plugin 0.1.0, sglang 0.5.23, python -, torch -",
        "topology": "tp_size 2, pp_size 1, dp_size 1, dp_rank 0, dp_attention no, ranks 2, nodes 1, host gpu-7",
        "speculation": "algorithm EAGLE, topk 1, adaptive yes, initial_steps 3, candidate_steps 0 1 3, "
        "rejection_sampling no, block_verification no",
        "runs on": "device -, device_name -, dtype -, kv_cache_dtype -, attention_backend -",
        "limits": "8 running requests, - KV tokens, graphs up to batch 8",
        "offers": "plain_warm, speculate(1), speculate(3)",
        "not offered": "plain_native: not proven with LoRA",
        "draft KV": "25% of the requests have a hole in theirs; 3 were drafted for with one",
        "memory": "the step counts take 1.20 GiB of the device (9830 KV tokens); "
        "each running request keeps 8 KV tokens free",
        "in force": "plain_warm, decided by pin",
        "pin": "plain_warm, 9m58s left, in force, by kim@ops at 2023-11-14T22:13:20+00:00: latency",
        "policy": "ucb, on trial as a canary, paused by the pin",
        "shadow": "goodput, agrees for 94.0% of 1,200 steps",
        "lease": "version 7, age 0.4s, accepted",
        "on expiry": "last:60",
        "profile": "none",
        "alarms": "acceptance_drift",
        "measured": "1,234 tokens/s, 1.91 accepted drafts, 7.25 ms a step, batch 3.5 over 640 steps; "
        "12 switches; 4 running, 1 waiting",
        "dropped": "negative_count=2",
        "refused": "lease_no_state=1",
        "hooks": "1 applied, 1 not",
        "not hooked": "a.B.d: no such method [in 0.5.16]",
    }


def test_a_journal_that_fails_is_said() -> None:
    shown = dict(page.lines(engine_detail(engine(), "disk_full: database or disk is full")))
    assert shown["journal"] == "the controller's journal fails: disk_full: database or disk is full"


def test_an_engine_that_only_observes_says_why() -> None:
    assert dict(page.lines(engine_detail(engine(SILENT))))["offers"] == (
        "nothing, it only observes: TRIMTAB_MODE is observe"
    )


def test_what_the_step_counts_take_is_unknown_where_nobody_measured() -> None:
    unmeasured = replace(engine_detail(engine()), candidate_cost={
        "memory_bytes": None, "kv_tokens": None, "reserved_kv_tokens_per_request": 8,
    })  # fmt: skip
    assert dict(page.lines(unmeasured))["memory"] == (
        "the step counts take an unknown part of the device; each running request keeps 8 KV tokens free"
    )
    assert dict(page.lines(engine_detail(engine(SILENT))))["memory"] == "-"


def test_a_decision_shows_the_chosen_mode_and_what_is_expected_of_every_candidate() -> None:
    table = text_of(page.decision_table(engine_detail(engine()).bands))
    assert table == DECISION


def test_a_frame_sums_the_connected_engines_and_shows_trouble() -> None:
    views = [engine_view(engine()), engine_view(engine(SILENT))]
    title = heading("unix:/s", views)
    assert title.startswith("trimtab  unix:/s  2 engines  1,234 tokens/s  ")
    shown = text_of(frame(views, title, 120, "no controller answers"))
    assert shown.startswith(title)
    assert "llama-b" in shown
    assert shown.endswith("no controller answers")


def test_a_frame_without_engines_says_how_to_get_one() -> None:
    assert NO_ENGINES in text_of(frame([], heading("unix:/s", []), 120))


def test_ages_go_on_between_reports_until_the_engine_counts_as_silent() -> None:
    view = engine_view(engine())
    assert ages(aged(view, 2.0)) == ("connected", 2.1, 2.4)
    assert aged(view, SILENT_AFTER_S).state == "silent"
    assert aged(engine_view(engine(SILENT)), 60.0).state == "disconnected"


def ages(view: EngineView) -> tuple[str, float | None, float | None]:
    assert view.lease is not None
    return view.state, view.last_message_age_s, view.lease.age_s


def test_of_an_engine_that_is_gone_the_table_shows_nothing_that_may_have_changed_since() -> None:
    gone = replace(engine_view(engine()), state="disconnected", pin=None)
    _, row = text_of(output.engines_table([gone])).splitlines()
    assert row.split() == ["llama-a", "disconnected", *"------", "12", "4/1", "-"]


def test_the_page_says_what_native_plain_takes_where_it_is_offered() -> None:
    offering = engine()
    offering.hello.plain.window_tokens, offering.hello.plain.ring_bytes = 64, 96 << 20
    offering.hello.plain.graph_bytes, offering.hello.plain.kv_tokens = 300 << 20, 3_072
    offering.hello.plain.start_time.FromMilliseconds(2_600)
    assert dict(page.lines(engine_detail(offering)))["native"] == (
        "96 MiB for 64 unread tokens a request, 300 MiB for its graph, together 3,072 KV tokens; 2.6 s of the start"
    )
