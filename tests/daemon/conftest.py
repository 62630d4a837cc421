from harness import fake, home, nano, shared_fake  # noqa: F401
