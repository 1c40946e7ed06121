"""Finds environment variables with our prefix that nothing reads.

Most are misspelt.
"""

import re
from collections.abc import Mapping

PREFIX = "BRAIDLOG_"
OF_COMMANDS = frozenset(
    {
        "BRAIDLOG_BOOTSTRAP",
        "BRAIDLOG_CLIENT_CONFIG",
        "BRAIDLOG_CLUSTER_SECRET_FILE",
        "BRAIDLOG_CONFIG",
        "BRAIDLOG_CONTROL",
        "BRAIDLOG_TRACEBACK",
    }
)
OF_OTHERS = re.compile(
    # Kubernetes sets these in every pod beside a service whose name begins with braidlog.
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
    # Shuffle tasks read these, and the tests that run against other people's software.
    r"|BRAIDLOG_(SHUFFLE|CONFORMANCE|KAFKA|KAFKAJS|SPARK_KAFKA)_\w+"
)


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """List the variables that nothing reads, each with advice."""
    suspects = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in OF_COMMANDS]
    if not suspects:
        return []
    from braidlog.runtime.settings import advice_for, fields

    known = {f"{PREFIX}{name.upper()}" for name in fields()}
    unread = [name for name in suspects if name not in known and not OF_OTHERS.fullmatch(name)]
    return [(name, advice_for(name, known | OF_COMMANDS, likeness=0.8)) for name in unread]
