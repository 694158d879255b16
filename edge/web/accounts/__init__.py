"""Accounts of the box: who asks over HTTP, and what opens a door.

| file | what |
|---|---|
| `rules.py` | pure: names, passwords, tokens, claim codes, how long a session lives |
| `limits.py` | pure: how wrong passwords slow down whoever tries |
| `book.py` | `Accounts`: signs in, finds out who asks, keeps the audit log; over `edge/store/accounts.py` |
| `gate.py` | ASGI: lets nobody pass whom `Accounts` does not know |
"""
