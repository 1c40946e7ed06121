"""Reads the settings of a command from all sources."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from braidlog.cli.options import pairs
from braidlog.clients.errors import WrongUsage

if TYPE_CHECKING:
    from braidlog.runtime.settings import Settings


def read_settings(config: Path | None, set: list[str] | None, flags: Mapping[str, str | None]) -> "Settings":
    """Merge flags, the environment, the file and the defaults.

    `set` has the values of --set, a flag for any setting.
    """
    from braidlog.runtime.errors import InvalidSetting
    from braidlog.runtime.settings import load_settings

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return load_settings({**pairs(set, "--set"), **given}, config=config, environ=os.environ)
    except InvalidSetting as error:
        raise WrongUsage(str(error), help=error.help) from error
