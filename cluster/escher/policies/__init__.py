"""ESCHER's policies as pure state machines and pure lists of calls (card section 5). The table of them: `table`."""
