# SPDX-License-Identifier: MIT OR Apache-2.0
"""Renders the chat templates of a folder with Transformers: python render_templates.py TEMPLATE_DIR

Reads TEMPLATE_DIR/cases.json (a list of cases) and *.jinja, writes TEMPLATE_DIR/goldens.json: for each case the text, or the
message that the template raised. Needs transformers and jinja2. `strftime_now` gives NOW.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2025, 1, 9, 12, 30, 0)
TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(source, case):
    # apply_chat_template drops null fields before it renders.
    messages = [{k: v for k, v in m.items() if v is not None} for m in case["messages"]]
    variables = TOKENS | case.get("variables", {})
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages],
            tools=case.get("tools"),
            chat_template=source,
            add_generation_prompt=case.get("add_generation_prompt", False),
            **variables,
        )
        return {"text": texts[0]}
    except jinja2.exceptions.TemplateError as e:
        return {"raised": str(e)}


def main(folder):
    folder = pathlib.Path(folder)
    chat_template_utils.datetime = FixedClock
    cases = json.loads((folder / "cases.json").read_text())
    out = {
        "made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
        "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()),
        "tokens": TOKENS,
        "results": [
            {"name": c["name"], "template": c["template"]}
            | render((folder / f"{c['template']}.jinja").read_text(), c)
            for c in cases
        ],
    }
    (folder / "goldens.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
