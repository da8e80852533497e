"""The KIPs' trials: which runs each is made of, how they are run and kept, and what is shown of them."""
