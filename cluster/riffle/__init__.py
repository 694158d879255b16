"""Riffle (EuroSys '18): many small sample shards become few large files before fleet training reads them."""
