from harness import fake, home, nano  # noqa: F401
