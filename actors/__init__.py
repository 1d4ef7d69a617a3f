"""The Ray actors, thin, and the lanes that they host, which know no Ray."""
