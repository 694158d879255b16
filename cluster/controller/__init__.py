"""The fleet's controller: membership, state, rounds. One at a time writes, by lease."""
