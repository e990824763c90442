"""The local web page: what a model of images does, to play with."""
