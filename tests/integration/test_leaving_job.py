"""The Job of the page on work that is asked to leave, before a real API server.

Only here: a real API server reads the Job of the page strictly.
"""

from __future__ import annotations

import re

import pytest
import yaml

from .kube import Client
from .kube_files import REPOSITORY

PAGE = (REPOSITORY / "docs/operations/work-that-leaves.md").read_text()
STRICT = "/apis/batch/v1/namespaces/default/jobs?dryRun=All&fieldValidation=Strict"


@pytest.mark.slow
def test_the_api_server_takes_the_job_of_the_page_and_no_misspelt_one(root: Client) -> None:
    # The second is of a pod's volume alone.
    text, _ = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    job = yaml.safe_load(text)
    reply = root.request("POST", STRICT, job)
    assert reply.status == 201, reply.message
    reply = root.request("POST", STRICT, yaml.safe_load(text.replace("onExitCodes", "onExitCode")))
    assert reply.status == 400 and "onExitCode" in reply.message
