"""Token trees: how drafts hang together, which may see which, and how far the target agrees.

A tree is held as SGLang holds it: node 0 is the last committed token, `next` is a node's first child and
`sibling` the next child of the same parent, -1 for none.
"""

from __future__ import annotations

from typing import Any

import torch

QLEN_ONLY = 1


def build_tree_kernel_efficient_cpu(
    parents: Any, selected: Any, seq_lens: Any, tree_mask: Any, positions: Any, ret_index: Any, ret_next: Any,
    ret_sibling: Any, topk: int, depth: int, n_nodes: int, mask_mode: int,
) -> None:  # fmt: skip
    """Fill mask, positions and links of each request's tree from the drafts that were selected."""
    if int(mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"tree mask mode {int(mask_mode)}: CPU workers use QLEN_ONLY ({QLEN_ONLY})")
    n_requests = seq_lens.numel()
    mask = tree_mask[: n_requests * n_nodes * n_nodes].view(n_requests, n_nodes, n_nodes)
    position = positions.view(n_requests, n_nodes)
    mask.zero_()
    mask[:, :, 0] = True
    ret_index.view(n_requests, n_nodes).copy_(torch.arange(n_requests * n_nodes).view(n_requests, n_nodes))
    chosen = selected.reshape(n_requests, n_nodes - 1).tolist()
    parent_tables = parents.reshape(n_requests, parents.numel() // n_requests).tolist()
    for request in range(n_requests):
        up = _parents(chosen[request], parent_tables[request], topk)
        for node in range(n_nodes):
            above, level = node, 0
            while above > 0:
                mask[request, node, above] = True
                above, level = up[above], level + 1
            position[request, node] = int(seq_lens[request]) + level
        _link(up, ret_next[request], ret_sibling[request])


def reconstruct_indices_from_tree_mask(
    tree_mask: Any, seq_lens: Any, positions: Any, ret_index: Any, ret_next: Any, ret_sibling: Any, n_requests: int,
    n_nodes: int,
) -> None:  # fmt: skip
    """The same from a mask alone: a node's parent is the latest earlier node that it may see."""
    mask = tree_mask[: n_requests * n_nodes * n_nodes].view(n_requests, n_nodes, n_nodes).bool()
    positions.view(n_requests, n_nodes).copy_(seq_lens.view(n_requests, 1) + mask.tril(-1).sum(-1))
    ret_index.copy_(torch.arange(n_requests * n_nodes).view(n_requests, n_nodes))
    ret_next.fill_(-1)
    ret_sibling.fill_(-1)
    for request in range(n_requests):
        up = [max((j for j in range(i) if mask[request, i, j]), default=-1) for i in range(n_nodes)]
        _link(up, ret_next[request], ret_sibling[request])


def verify_tree_greedy_cpu(
    predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, retrive_index: Any,
    retrive_next_token: Any, retrive_next_sibling: Any, target_predict: Any,
) -> None:  # fmt: skip
    """Walk each tree as long as the target's choice is among the drafts; the last choice is the bonus token."""
    wanted = target_predict.reshape(-1).tolist()
    for request in range(candidates.shape[0]):
        index, child, sibling, token = (
            table[request].tolist() for table in (retrive_index, retrive_next_token, retrive_next_sibling, candidates)
        )
        last, node, n_accepted = index[0], 0, 0
        accept_index[request, 0] = last
        for _ in range(1, accept_index.shape[1]):
            node = child[node]
            while node != -1 and token[node] != wanted[last]:
                node = sibling[node]
            if node == -1:
                break
            n_accepted += 1
            predicts[last] = wanted[last]
            last = index[node]
            accept_index[request, n_accepted] = last
        accept_token_num[request] = n_accepted
        predicts[last] = wanted[last]


def fill_bonus_tokens_cpu(accepted_tokens: Any, accept_lens: Any, bonus_tokens: Any, stride: int) -> None:
    """The last accepted token of each request, whose row in `accepted_tokens` is `stride` wide."""
    at = torch.arange(accept_lens.numel()) * stride + accept_lens - 1
    bonus_tokens.copy_(accepted_tokens.reshape(-1)[at])


def rotate_input_ids_cpu(input_ids: Any, starts: Any, lengths: Any, next_tokens: Any, select_index: Any = None) -> None:
    """Shift each request's tokens left by one and put its next token at the end (or at `select_index`)."""
    rows = zip(starts.tolist(), lengths.tolist(), next_tokens.reshape(-1).tolist(), strict=True)
    for i, (start, length, token) in enumerate(rows):
        if length > 0:
            end = start + length - 1
            input_ids[start:end] = input_ids[start + 1 : end + 1].clone()
            input_ids[end if select_index is None else int(select_index[i])] = token


def _parents(selected: list[int], parent_table: list[int], topk: int) -> list[int]:
    """The parent node of every node, -1 without one; `selected` are flat draft numbers, `topk` of them to a parent.

    Equal scores can bring a draft in without its parent. SGLang's own kernel leaves such a draft out of the tree.
    """
    nodes = {draft: node for node, draft in enumerate(selected, 1)}
    return [0, *(nodes.get(parent_table[draft // topk], -1) if draft >= topk else 0 for draft in selected)]


def _link(up: list[int], children: Any, siblings: Any) -> None:
    """Chain the children of each node in rising order."""
    for node in range(len(up) - 1, 0, -1):
        if up[node] >= 0:
            siblings[node] = children[up[node]]
            children[up[node]] = node
