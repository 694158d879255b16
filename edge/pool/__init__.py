"""Live inference in batches: requests with deadlines from all cameras, one queue per device (`edge.pool.pool`). Card: Orloj."""
