"""Runs another script with uvloop's event loops in place of asyncio's."""

import runpy
import sys

import uvloop

uvloop.install()
runpy.run_path(sys.argv[1], run_name="__main__")
