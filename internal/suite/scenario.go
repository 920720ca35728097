package suite

// Scenario is an exchange of a client with servers.
type Scenario struct {
	Name  string
	About string // what is not in the name, for the table
	Request
	// Replies are what the servers answer, one for each attempt, whichever of them
	// is asked. The last is repeated.
	Replies []Reply
}

// Request is what the client sends, and how it behaves.
type Request struct {
	Method string // empty: POST
	Path   string // empty: that of chats
	// Header has lines "Name: value". A Host is always sent, and so is a
	// Content-Type of JSON if there is a body and no other.
	Header  []string
	Body    string
	Chunked bool     // the body's length is not announced
	Trailer []string // after a body that is chunked
	// Expect waits for a 100 before it sends the body.
	Expect bool
	// Times is how often the request is sent, on one connection. Zero: once.
	Times int
	// Say are lines that are sent when the connection is upgraded, each after the
	// answer to the one before.
	Say []string
	// Slow reads the response through a small buffer, in small pieces.
	Slow  bool
	Leave Leave
	// Heard is what the client waits for before it leaves, with MidResponse, and as far
	// as a body that is cut is compared. Empty: all of it.
	Heard string
}

// Leave says when a client closes its connection.
type Leave int

// The moments at which clients leave.
const (
	Stays        Leave = iota
	MidRequest         // with half of its body sent
	BeforeHeader       // when a server has the request
	MidResponse        // when it has Request.Heard
)

// Reply is what a server answers.
type Reply struct {
	Status int // zero: 200
	// Early is the header of a 103 that goes before.
	Early []string
	// Header has lines "Name: value". A Content-Type of JSON is sent if there is no
	// other.
	Header []string
	// Parts are the body, each part sent on its own. In a stream of events the next
	// one is sent when the client has the one before.
	Parts []string
	// Usage is sent before the last part of a stream whose request asks for usage.
	Usage string
	// Loose sends all parts at once, without waiting for anybody.
	Loose bool
	// Chunked leaves the length of the body open. Streams always do.
	Chunked bool
	Trailer []string
	// Unread does not read the request's body.
	Unread bool
	// Upgrade leaves HTTP, and gives back each line in capitals until one says bye.
	Upgrade bool
	// Silent sends nothing at all, not even a header.
	Silent bool
	End    End
}

// End is how a server ends its response.
type End int

// The ends of responses.
const (
	Whole End = iota
	Cut       // the connection breaks
	Hang      // nothing more comes, until the client has gone
)
