"""What a model is worth on long text: measures that launchers, tools and the evaluation commands share."""
