"""Engines as the admin service describes them, for tests of what is made of them."""

from __future__ import annotations

from google.protobuf.text_format import Parse

from trimtabpb.v1 import admin_pb2

FULL = """
engine_id: "llama-a"
state: STATE_CONNECTED
hello {
  engine_id: "llama-a" boot_id: "b1" acts: true
  labels { key: "team" value: "chat" }
  software { plugin_version: "0.1.0" sglang_version: "0.5.23" }
  topology { tp_size: 2 pp_size: 1 dp_size: 1 host: "gpu-7" ranks: 2 nodes: 1 }
  speculation {
    algorithm: "EAGLE" topk: 1 adaptive: true initial_steps: 3 candidate_steps: [0, 1, 3] model: "llama-8b"
    accept_threshold_single: 0.9
  }
  modes { kind: KIND_PLAIN_WARM } modes { kind: KIND_SPECULATE steps: 1 } modes { kind: KIND_SPECULATE steps: 3 }
  graph_batch_sizes: [1, 2, 4, 8]
  max_running_requests: 8
  plain { refused { mode { kind: KIND_PLAIN_NATIVE } reason: "not proven with LoRA" } }
  on_expiry: "last:60"
  candidate_cost { memory_bytes: 1288490189 kv_tokens: 9830 reserved_kv_tokens_per_request: 8 }
  hooks { target: "a.B.c" applied: true }
  hooks { target: "a.B.d" reason: "no such method [in 0.5.16]" }
}
in_force { source: SOURCE_PIN mode { kind: KIND_PLAIN_WARM } pin_id: "p1" lease_version: 7 }
policy {
  name: "ucb" alarms: "acceptance_drift" paused: true canary: true
  shadow {
    name: "goodput" steps: 1200 agreed_steps: 1128
    bands { min_batch_size: 1 mode { kind: KIND_SPECULATE steps: 1 } probability: 1 reason: "exploit" }
  }
  bands { min_batch_size: 1 mode { kind: KIND_SPECULATE steps: 3 } probability: 0.9 reason: "exploit"
    candidates { mode { kind: KIND_SPECULATE steps: 3 } accepted_drafts: 1.9 step_ms: 7.25 goodput_tps: 1200
                 goodput_low_tps: 1100 goodput_high_tps: 1300 }
    candidates { mode { kind: KIND_PLAIN_WARM } step_ms: 5 }
  }
  bands { min_batch_size: 2 mode { kind: KIND_PLAIN_WARM } probability: 1 reason: "probe" }
  bands { min_batch_size: 5 mode { kind: KIND_SPECULATE steps: 1 } probability: 1 reason: "exploit" }
}
pin { id: "p1" mode { kind: KIND_PLAIN_WARM } remaining { seconds: 598 } reason: "latency" owner: "kim@ops" }
pinned_at { seconds: 1700000000 }
lease { version: 7 age { nanos: 400000000 } acknowledged: true }
measured {
  goodput_tps: 1234.5 accepted_drafts: 1.91 step_ms: 7.25 batch_size: 3.5 rows: 640 switches: 12
  dropped { key: "negative_count" value: 2 }
  running_requests: 4 waiting_requests: 1 stale_share: 0.25 stale_resumes: 3
}
last_message_age { nanos: 100000000 }
connected_at { seconds: 1700000000 }
refused { key: "lease_no_state" value: 1 }
"""

SILENT = 'engine_id: "llama-b" state: STATE_DISCONNECTED hello { observe_reasons: "TRIMTAB_MODE is observe" }'


CONTROLLER = """
started_at { seconds: 1700000000 }
pins {
  id: "p1" selector { labels { key: "team" value: "chat" } } any_plain: true remaining { seconds: 598 }
  reason: "latency" owner: "kim@ops" pinned_at { seconds: 1700000000 }
  released { engine_ids: "llama-b" } released { labels { key: "zone" value: "1" } }
}
pins {
  id: "p2" selector { all: true } range { min_steps: 1 max_steps: 3 } pinned_at { seconds: 1700000000 }
}
policies { selector { labels { key: "team" value: "chat" } } policy: "fixed" parameters { key: "steps" value: "3" } }
policies { selector { all: true } policy: "ucb" shadow: true }
canary {
  policy: "goodput" selector { all: true } share: 0.1 since { seconds: 1700000000 } engine_ids: "llama-a"
  parameters { key: "margin" value: "0.01" }
}
refused { key: "permission_denied" value: 3 }
"""


def controller(text: str = CONTROLLER) -> admin_pb2.Controller:
    """The controller that this text describes."""
    return Parse(text, admin_pb2.Controller())


def engine(text: str = FULL) -> admin_pb2.Engine:
    """The engine that this text (protobuf's text format) describes."""
    return Parse(text, admin_pb2.Engine())
