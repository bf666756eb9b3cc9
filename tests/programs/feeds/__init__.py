"""Random programs of feeds, each built twice: of dagpu's ops, and of a model that says what they are to do."""
