"""Salus: whose iteration runs next, and whether its memory fits (papers/salus.md). Pure: told the time, owns no clock and no thread."""
