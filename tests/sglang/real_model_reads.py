"""What a converted model makes of English, as JSON: `python real_model_reads.py TARGET`."""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROSE = (
    "The old lighthouse stood at the end of the stony beach. Every evening the keeper climbed the stairs and lit the "
    "lamp, so that the ships could find their way home. In winter the storms were so loud that he could not hear his "
    "own voice, but he never missed a night."
)
QUESTION = "What is the capital of France?"


def main(target: str) -> None:
    """Print the perplexity of some prose, and the greedy answer to a question."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    prose = torch.tensor([tokenizer.encode(PROSE)])
    asked = [{"role": "user", "content": QUESTION}]
    question = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False, return_tensors="pt")
    with torch.no_grad():
        perplexity = float(model(prose, labels=prose).loss.exp())
        answer = model.generate(question, max_new_tokens=16, do_sample=False)[0, question.shape[1] :]
    print(json.dumps({"perplexity": perplexity, "answer": tokenizer.decode(answer)}))


if __name__ == "__main__":
    main(sys.argv[1])
