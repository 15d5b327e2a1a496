#!/usr/bin/env python3
"""/metrics: what Prometheus' own parser makes of it, figures that follow requests, and a model whose name needs
escapes.
"""

import math
import time

from apus_server import Checks, Server, model_path
from prometheus_client.parser import text_string_to_metric_families

check = Checks()
NAME = 'a "model"\\name'


def scrape(server):
    """Families by name, and all samples as {(name, labels): value}."""
    status, headers, body = server.request("GET", "/metrics")
    check(status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4"), f"{status} {headers}")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    samples = {}
    for family in families.values():
        check(
            family.documentation and family.type in ("counter", "gauge", "histogram"), f"{family.name}: help and type"
        )
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            check(key not in samples, f"{key} comes twice")
            samples[key] = sample.value
    return families, samples


def check_histograms(families):
    for family in families.values():
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        count = [s.value for s in family.samples if s.name.endswith("_count")]
        check(buckets == sorted(buckets) and buckets[-1] == (math.inf, count[0]), f"{family.name}: buckets {buckets}")
        check([v for _, v in buckets] == sorted(v for _, v in buckets), f"{family.name}: counts fall")


def main():
    with Server(model_path("qwen-0.5b"), "--ctx-size", 4096, "--slots", 2, name=NAME) as server:

        def value(samples, name, **labels):
            return samples.get((name, tuple(sorted({"model_name": NAME, **labels}.items()))))

        families, before = scrape(server)
        check(value(before, "apus_model_loaded") == 1, "the name comes back as it was given")
        for _ in range(2):
            status, answer = server.chat("Count to ten.", max_tokens=12, temperature=0)
            check(status == 200, answer)
        server.stream("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True})
        server.chat("Hello", temperature=9)
        server.wait_idle()
        families, after = scrape(server)
        check_histograms(families)
        check(value(after, "apus_request_generation_tokens_count") == 3, "three answers were seen")
        check(
            value(after, "apus_request_generation_tokens_sum") == value(after, "apus_generation_tokens_total"),
            "tokens agree",
        )
        check(
            value(after, "apus_request_success_total", finished_reason="length")
            + value(after, "apus_request_success_total", finished_reason="stop")
            == 3,
            "reasons",
        )
        first = value(after, "apus_time_to_first_token_seconds_sum")
        check(0 < first < value(after, "apus_e2e_request_latency_seconds_sum"), f"first token after {first}")
        gaps = value(after, "apus_inter_token_latency_seconds_count")
        check(
            gaps == value(after, "apus_generation_tokens_total") - 3, f"{gaps} gaps between the tokens of three answers"
        )
        check(
            value(after, "apus_request_decode_tokens_per_second_count") == 3 and value(after, "apus_slots") == 2,
            "rates and slots",
        )
        # What routers of the Kubernetes gateway look for.
        check(
            value(after, "vllm:num_requests_waiting") == value(after, "vllm:num_requests_running") == 0,
            "nobody waits or runs",
        )
        check(value(after, "vllm:kv_cache_usage_perc") == 0, "what only the prefix cache holds does not count as used")
        info = [dict(labels) for name, labels in after if name == "vllm:cache_config_info"]
        check(
            len(info) == 1 and info[0]["block_size"] == "128" and int(info[0]["num_gpu_blocks"]) == 2 * 4096 // 128,
            f"{info}",
        )
        check(after[("apus_http_responses_total", (("status", "400"),))] == 1, "one request was refused")
        for _name, family in families.items():
            if family.type == "counter":
                for sample in family.samples:
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    check(sample.value >= before.get(key, 0), f"{key} fell")
        times = []
        for _ in range(30):
            start = time.perf_counter()
            server.request("GET", "/metrics")
            times.append(time.perf_counter() - start)
        check(min(times) < 0.01, f"a scrape takes {min(times) * 1e3:.2f} ms at best")  # with a connection; 0.5 ms here
        print(f"a scrape takes {min(times) * 1e3:.2f} ms")
    check.done()


main()
