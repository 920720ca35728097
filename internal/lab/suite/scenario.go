package suite

// Scenario is an exchange of a client with servers.
type Scenario struct {
	Name string
	Request
	// Replies are the servers' answers, one for each attempt, whichever server
	// gets it. The last is repeated.
	Replies []Reply
}

// Request is what the client sends, and how it behaves.
type Request struct {
	Method string // empty: POST
	Path   string // empty: that of chat completions
	// Header has lines "Name: value". A Host is always sent, and a Content-Type of
	// JSON if there is a body and no other.
	Header  []string
	Body    string
	Chunked bool     // without announcing the body's length
	Trailer []string // after a chunked body
	// Expect waits for a 100 before it sends the body.
	Expect bool
	// Times is how often the request is sent, on one connection. Zero: once.
	Times int
	// Say are the lines to send after an upgrade, each after the answer to the
	// previous one.
	Say []string
	// Slow reads the response through a small buffer, in small pieces.
	Slow  bool
	Leave Leave
	// Heard is what the client waits for before it leaves, with MidResponse, and how
	// much of a body that is cut off is compared. Empty: all of it.
	Heard string
}

// Leave says when a client closes its connection.
type Leave int

// When clients leave.
const (
	Stays        Leave = iota
	MidRequest         // after sending half of its body
	BeforeHeader       // when a server has received the request
	MidResponse        // when it has received Request.Heard
)

// Reply is what a server answers.
type Reply struct {
	Status int // zero: 200
	// Early is the header of a preceding 103.
	Early []string
	// Header has lines "Name: value". A Content-Type of JSON is sent if there is no
	// other.
	Header []string
	// Parts are the body, each sent separately. In a stream of events, each is sent
	// when the client has received the previous one.
	Parts []string
	// Usage is sent before the last part of a stream whose request asks for usage.
	Usage string
	// Loose sends all parts at once, without waiting.
	Loose bool
	// Chunked does not announce the body's length. Streams never do.
	Chunked bool
	Trailer []string
	// Unread does not read the request's body.
	Unread bool
	// Upgrade leaves HTTP, and answers each line in capitals until one says bye.
	Upgrade bool
	// Silent sends nothing at all, not even a header.
	Silent bool
	End    End
}

// End is how a server ends its response.
type End int

// How responses end.
const (
	Whole End = iota
	Cut       // the connection breaks
	Hang      // nothing more is sent until the client has left
)
