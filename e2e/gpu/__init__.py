"""On a machine with a card (`make e2e-gpu`): the library by hand, without a cluster."""
