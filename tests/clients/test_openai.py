# SPDX-License-Identifier: MIT OR Apache-2.0
"""The official openai client: what it sends is understood, what it gets it can read. See `run` beside this file."""

import asyncio
import json
import math
import os
import sys
import unittest

import openai
from server import Server

URL = os.environ.get("BASE_URL")
KEY = os.environ.get("API_KEY", "none")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


class Case(unittest.TestCase):
    """Every test has a client for the one server."""

    def setUp(self):
        self.client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=300)
        self.model = self.client.models.list().data[0].id

    def chat(self, **fields):
        fields = {"messages": QUESTION, "temperature": 0, "max_tokens": 12, **fields}
        return self.client.chat.completions.create(model=self.model, **fields)

    def complete(self, **fields):
        fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields}
        return self.client.completions.create(model=self.model, **fields)


class Chat(Case):
    def test_an_answer(self):
        answer = self.chat()
        choice = answer.choices[0]
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertLessEqual(usage.completion_tokens, 12)
        self.assertTrue(answer.system_fingerprint)

    def test_an_answer_can_be_sent_back(self):
        message = self.chat().choices[0].message
        more = [*QUESTION, message, {"role": "user", "content": "And of Spain?"}]
        self.assertTrue(self.chat(messages=more).choices)
        self.assertTrue(self.chat(messages=[*QUESTION, message.model_dump(), more[-1]]).choices)

    def test_a_stream_is_the_answer(self):
        whole = self.chat().choices[0]
        text, finish, usage, roles = "", None, None, []
        for event in self.chat(stream=True, stream_options={"include_usage": True}):
            usage = event.usage or usage
            for choice in event.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                roles.append(choice.delta.role)
        self.assertEqual((text, finish), (whole.message.content, whole.finish_reason))
        self.assertEqual([r for r in roles if r], ["assistant"])
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_the_streaming_helper(self):
        fields = {"messages": QUESTION, "temperature": 0, "max_tokens": 12}
        text = ""
        with self.client.chat.completions.stream(model=self.model, **fields) as stream:
            for event in stream:
                if event.type == "content.delta":
                    text += event.delta
        self.assertEqual(text, self.chat().choices[0].message.content)

    def test_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=3).choices[0]
        entries = choice.logprobs.content
        joined = b"".join(bytes(e.bytes) for e in entries).decode()
        self.assertEqual(joined, choice.message.content)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            ranked = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(ranked, sorted(ranked, reverse=True))
            # Greedy: the token is the most probable one.
            self.assertAlmostEqual(entry.logprob, ranked[0], places=5)
            self.assertLessEqual(sum(math.exp(l) for l in ranked), 1.001)

    def test_seeds(self):
        fields = {"temperature": 1, "seed": 1234, "n": 2, "max_tokens": 8}
        first = [c.message.content for c in self.chat(**fields).choices]
        again = [c.message.content for c in self.chat(**fields).choices]
        self.assertEqual(first, again)
        fresh = self.chat(temperature=1)
        seed = fresh.model_extra["metrale"]["seed"]
        repeated = self.chat(temperature=1, seed=seed)
        self.assertEqual(fresh.choices[0].message, repeated.choices[0].message)

    def test_n(self):
        answer = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        texts = ["", "", ""]
        for event in self.chat(n=3, temperature=1, seed=5, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [c.message.content for c in answer.choices])


class Completions(Case):
    def test_an_answer(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.choices[0].text)
        if "smollm2" in self.model.lower():
            self.assertTrue(answer.choices[0].text.startswith(" Paris"), answer.choices[0].text)

    def test_a_stream_is_the_answer(self):
        whole = self.complete().choices[0]
        parts = [e.choices[0] for e in self.complete(stream=True)]
        self.assertEqual("".join(p.text for p in parts), whole.text)
        self.assertEqual(parts[-1].finish_reason, whole.finish_reason)

    def test_stop(self):
        whole = self.complete(max_tokens=16).choices[0].text
        stop = whole[4:6]
        answer = self.complete(max_tokens=16, stop=[stop, "never said"]).choices[0]
        self.assertEqual(answer.text, whole[: whole.index(stop)])
        self.assertEqual(answer.finish_reason, "stop")
        streamed = "".join(e.choices[0].text for e in self.complete(max_tokens=16, stop=stop, stream=True))
        self.assertEqual(streamed, answer.text)

    def test_several_prompts(self):
        answer = self.complete(prompt=[PROMPT, "Two and two is"], n=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        alone = self.complete().choices[0].text
        self.assertEqual([c.text for c in answer.choices[:2]], [alone, alone])

    def test_token_ids(self):
        reply = self.client.post("/../tokenize", body={"prompt": PROMPT}, cast_to=object)
        answer = self.complete(prompt=reply["tokens"])
        self.assertEqual(answer.choices[0].text, self.complete().choices[0].text)

    def test_logprobs_and_echo(self):
        answer = self.complete(logprobs=2, echo=True)
        choice = answer.choices[0]
        logprobs = choice.logprobs
        self.assertTrue(choice.text.startswith(PROMPT))
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual(len(logprobs.tokens), answer.usage.total_tokens)
        for token, offset in zip(logprobs.tokens, logprobs.text_offset):
            self.assertEqual(choice.text[offset : offset + len(token)], token)
        for own, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
            self.assertIn(len(top), (2, 3))
            self.assertLessEqual(own, max(top.values()) + 1e-6)

    def test_bias_and_length(self):
        ids = self.client.post("/../tokenize", body={"prompt": " Paris"}, cast_to=object)["tokens"]
        biased = self.complete(logit_bias={str(ids[-1]): -100}).choices[0].text
        self.assertFalse(biased.startswith(" Paris"), biased)
        forced = self.complete(logit_bias={str(ids[-1]): 100}, max_tokens=3)
        self.assertEqual(forced.choices[0].text, " Paris" * 3)
        self.assertEqual(forced.choices[0].finish_reason, "length")
        self.assertEqual(forced.usage.completion_tokens, 3)


class Errors(Case):
    def refused(self, kind, code, **fields):
        with self.assertRaises(kind) as raised:
            self.chat(**fields)
        self.assertEqual(raised.exception.code, code)
        return raised.exception

    def test_what_is_refused(self):
        bad = openai.BadRequestError
        self.assertEqual(self.refused(bad, "invalid_value", temperature=-1).param, "temperature")
        self.refused(bad, "invalid_value", n=0)
        self.refused(bad, "unknown_parameter", extra_body={"temprature": 1})
        self.refused(bad, "unsupported_parameter", tools=[])
        self.refused(bad, "invalid_value", messages=[])
        self.refused(bad, "context_length_exceeded", max_tokens=10**7)

    def test_an_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.client.completions.create(model="gpt-4", prompt="a")
        self.assertEqual(raised.exception.code, "model_not_found")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt-4")

    def test_the_model_is_described(self):
        model = self.client.models.retrieve(self.model)
        self.assertEqual(model.id, self.model)
        self.assertGreater(model.model_extra["max_model_len"], 0)


class Together(Case):
    def test_a_crowd_gets_the_answers_of_one_alone(self):
        alone = [self.complete(prompt=f"{i} and one is").choices[0].text for i in range(6)]

        async def crowd():
            async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=300) as client:
                asked = (
                    client.completions.create(
                        model=self.model, prompt=f"{i} and one is", temperature=0, max_tokens=8
                    )
                    for i in range(6)
                )
                return [a.choices[0].text for a in await asyncio.gather(*asked)]

        self.assertEqual(asyncio.run(crowd()), alone)

    def test_a_stream_that_is_closed_frees_its_place(self):
        stream = self.complete(prompt="Once upon a time", max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(100):
            page = self.client.get("/../metrics", cast_to=str)
            running = [l for l in page.splitlines() if l.startswith("vllm:num_requests_running{")]
            if running[0].endswith(" 0"):
                return
        self.fail("the request still runs")


class Key(unittest.TestCase):
    """A server that wants a key; only where the tests start servers."""

    def test_a_key(self):
        if "MET" not in os.environ:
            self.skipTest("needs a server of its own: set MET")
        server = Server("--api-key", "secret")
        try:
            client = openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0)
            with self.assertRaises(openai.AuthenticationError) as raised:
                client.models.list()
            self.assertEqual(raised.exception.code, "invalid_api_key")
            good = openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0)
            self.assertTrue(good.models.list().data)
        finally:
            status = server.stop()
        self.assertEqual(status, 0)


def main():
    global URL
    if URL is not None:
        return unittest.main(verbosity=2)
    server = Server()
    URL = server.url
    status = 1
    try:
        result = unittest.main(verbosity=2, exit=False).result
        status = 0 if result.wasSuccessful() else 1
    finally:
        ended = server.stop()
    if ended != 0:
        print(json.dumps({"met ended with": ended}), file=sys.stderr)
    sys.exit(status or ended)


if __name__ == "__main__":
    main()
