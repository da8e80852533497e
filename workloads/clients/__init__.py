"""One client library a module, each behind the same small ``Client`` protocol."""
