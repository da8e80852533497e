"""The reference clients: thin asyncio shells that do the I/O and let ``rules`` decide."""
